# Reads the arguments as one JSON object from stdin, the log from its file or from the arguments, and writes the summary
# as one JSON object to stdout. Progress goes to stderr. POSIX awk; expects LC_ALL=C.

BEGIN {
    prepare()
    while ((getline line) > 0) json = json (json == "" ? "" : "\n") line
    parse_object(json, args)
    top = ("top" in args) ? args["top"] + 0 : 10
    min_level = ("min_level" in args) ? args["min_level"] : "warn"
    if (!(min_level in rank)) fail("min_level is \"" min_level "\": write trace, debug, info, warn, error or fatal")
    if (("path" in args) == ("text" in args)) fail("give either \"path\" or \"text\"")

    if ("path" in args) read_file(args["path"])
    else read_text(args["text"])
    report()
    exit 0
}

function prepare(    i, h, h4) {
    for (i = 1; i < 256; i++) byte[sprintf("%c", i)] = i
    split("none trace debug info warn error fatal", order, " ")
    for (i = 1; i <= 7; i++) rank[order[i]] = i - 1
    level_of["TRACE"] = "trace"
    level_of["DEBUG"] = "debug"
    level_of["INFO"] = level_of["NOTICE"] = "info"
    level_of["WARN"] = level_of["WARNING"] = "warn"
    level_of["ERROR"] = level_of["ERR"] = level_of["SEVERE"] = "error"
    level_of["FATAL"] = level_of["CRITICAL"] = level_of["CRIT"] = level_of["PANIC"] = "fatal"
    level_of["ALERT"] = level_of["EMERG"] = "fatal"

    # Intervals such as {4} are not in every awk.
    h = "[0-9a-fA-F]"; h4 = h h h h
    uuid = h4 h4 "-" h4 "-" h4 "-" h4 "-" h4 h4 h4
    long_hex = h4 h4 h "*"
    iso = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][T ][0-9][0-9]:[0-9][0-9](:[0-9][0-9]([.,][0-9]+)?)?(Z|[+-][0-9][0-9]:?[0-9][0-9])?"
    month = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    syslog = month "[ ]+[0-9]+ [0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
    access = "[0-9][0-9]/" month "/[0-9][0-9][0-9][0-9]:[0-9][0-9]:[0-9][0-9]:[0-9][0-9]( [+-][0-9][0-9][0-9][0-9])?"
    unescaped["n"] = "\n"; unescaped["t"] = "\t"; unescaped["r"] = "\r"; unescaped["b"] = "\b"; unescaped["f"] = "\f"
    MAX_GROUPS = 20000    # distinct messages that are told apart; the rest is counted together
}

function fail(message) {
    print "log_summary: " message > "/dev/stderr"
    exit 1
}

# ---- the log

function read_file(path,    quoted, command, status) {
    source = path
    # Neither "-" nor a name with "=" may mean anything but a file.
    if (path !~ /^\//) path = "./" path
    quoted = path
    gsub(/'/, "'\\''", quoted)
    quoted = "'" quoted "'"
    if (system("test -e " quoted) != 0) fail(source ": there is no such file")
    if (system("test -f " quoted) != 0) fail(source ": not a regular file")
    command = "wc -c < " quoted
    command | getline total
    close(command)
    total += 0
    while ((status = (getline line < path)) > 0) add(line)
    if (status < 0) fail(source ": cannot be read")
}

function read_text(text,    count, i, part) {
    source = "(text)"
    total = length(text)
    count = split(text, part, "\n")
    if (count > 0 && part[count] == "") count--
    for (i = 1; i <= count; i++) add(part[i])
}

function add(line,    level, message, key) {
    lines++
    bytes += length(line) + 1
    if (bytes >= next_report) progress(bytes < total ? bytes : total)
    sub(/\r$/, "", line)
    note_time(line)
    level = find_level(line)
    count_of[level]++
    if (rank[level] < rank[min_level]) return
    message = find_message(line)
    key = level SUBSEP fold(message)
    if (!(key in seen)) {
        if (groups >= MAX_GROUPS) { ungrouped++; return }
        groups++
        example[key] = substr(message, 1, 300)
        at[key] = lines
    }
    seen[key]++
}

# About twenty lines a log, however long it is.
function progress(done) {
    printf "::progress {\"progress\": %.0f, \"total\": %.0f, \"message\": \"%d lines\"}\n", done, total, lines > "/dev/stderr"
    fflush("/dev/stderr")
    next_report = done + total / 20
    reported = done
}

function note_time(line,    head, found) {
    head = substr(line, 1, 200)
    if (match(head, iso) || match(head, syslog) || match(head, access)) {
        found = substr(head, RSTART, RLENGTH)
        if (first_time == "") first_time = found
        last_time = found
    }
}

# A `level` key, a word in brackets, or the first level written in capitals. "no error found" is not an error.
function find_level(line,    head, word, rest) {
    head = substr(line, 1, 400)
    if (match(head, /"?(level|lvl|severity|levelname)"?[ ]*[:=][ ]*"?[A-Za-z]+/)) {
        word = substr(head, RSTART, RLENGTH)
        sub(/.*[^A-Za-z]/, "", word)
        if (toupper(word) in level_of) return level_of[toupper(word)]
    }
    head = substr(line, 1, 160)
    if (match(head, /[[<][A-Za-z]+[]>]/)) {
        word = toupper(substr(head, RSTART + 1, RLENGTH - 2))
        if (word in level_of) return level_of[word]
    }
    rest = head
    while (match(rest, /[A-Z][A-Z]+/)) {
        word = substr(rest, RSTART, RLENGTH)
        if (word in level_of) return level_of[word]
        rest = substr(rest, RSTART + RLENGTH)
    }
    return "none"
}

# The message of a JSON or logfmt line, else the line without its time and level.
function find_message(line,    text, word) {
    if (match(line, /"(message|msg)"[ ]*:[ ]*"/)) return until_quote(substr(line, RSTART + RLENGTH))
    if (match(line, /(^| )msg="/)) return until_quote(substr(line, RSTART + RLENGTH))
    text = line
    if (match(substr(text, 1, 200), iso) || match(substr(text, 1, 200), syslog) || match(substr(text, 1, 200), access))
        text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
    sub(/^[][ ()|:-]+/, "", text)
    if (match(text, /^[[<]?[A-Za-z]+[]>]?[ :|-]+/)) {
        word = substr(text, RSTART, RLENGTH)
        gsub(/[^A-Za-z]/, "", word)
        if (toupper(word) in level_of) text = substr(text, RSTART + RLENGTH)
    }
    return text
}

function until_quote(text,    end) {
    end = match(text, /([^"\\]|\\.)*"/) ? RLENGTH - 1 : length(text)
    text = substr(text, 1, end)
    gsub(/\\"/, "\"", text)
    return text
}

function fold(text) {
    text = substr(text, 1, 300)
    gsub(uuid, "#", text)
    gsub(long_hex, "#", text)
    gsub(/[0-9]+/, "#", text)
    return text
}

# ---- the summary

function report(    i, key, best, part, separator) {
    if (bytes > total || total == 0) bytes = total
    if (reported < total || total == 0) progress(total)
    printf "{\"source\":%s,\"lines\":%d,\"bytes\":%.0f,\"levels\":{", quote(source), lines, total
    for (i = 7; i >= 1; i--) printf "%s\"%s\":%d", (i < 7 ? "," : ""), order[i], count_of[order[i]]
    printf "},\"first_time\":%s,\"last_time\":%s,\"top\":[", or_null(first_time), or_null(last_time)
    for (i = 1; i <= top; i++) {
        best = ""
        for (key in seen)
            if (best == "" || seen[key] > seen[best] || (seen[key] == seen[best] && at[key] < at[best])) best = key
        if (best == "") break
        split(best, part, SUBSEP)
        printf "%s{\"count\":%d,\"level\":\"%s\",\"message\":%s,\"first_line\":%d}", separator, seen[best], part[1], quote(example[best]), at[best]
        separator = ","
        delete seen[best]
    }
    printf "],\"not_grouped\":%d}\n", ungrouped
}

function or_null(text) {
    return text == "" ? "null" : quote(text)
}

# As a JSON string. Bytes that are not UTF-8 become U+FFFD: the result must be JSON whatever the log holds.
function quote(text,    out, i, n, c, b, b2, need, ok, k) {
    out = "\""
    n = length(text)
    for (i = 1; i <= n; i++) {
        c = substr(text, i, 1)
        b = byte[c]
        if (c == "\"" || c == "\\") out = out "\\" c
        else if (b < 32 || b == 127) out = out sprintf("\\u%04x", b)
        else if (b < 128) out = out c
        else {
            need = b >= 194 && b <= 223 ? 1 : b >= 224 && b <= 239 ? 2 : b >= 240 && b <= 244 ? 3 : 0
            ok = need > 0 && i + need <= n
            for (k = 1; ok && k <= need; k++) {
                b2 = byte[substr(text, i + k, 1)]
                ok = b2 >= 128 && b2 <= 191
                # Overlong forms, surrogates, and what lies beyond U+10FFFF.
                if (k == 1 && ((b == 224 && b2 < 160) || (b == 237 && b2 > 159) || (b == 240 && b2 < 144) || (b == 244 && b2 > 143))) ok = 0
            }
            if (ok) { out = out substr(text, i, need + 1); i += need }
            else out = out "\\ufffd"
        }
    }
    return out "\""
}

# ---- the arguments: one flat JSON object of strings and numbers, which the schema has checked already

function parse_object(text, into,    key) {
    source_text = text
    pos = 1
    expect("{")
    if (peek() == "}") return
    while (1) {
        if (peek() != "\"") fail("the arguments are not a JSON object of strings and numbers")
        key = parse_string()
        expect(":")
        into[key] = peek() == "\"" ? parse_string() : parse_scalar()
        if (peek() != ",") break
        pos++
    }
    expect("}")
}

function peek() {
    while (substr(source_text, pos, 1) ~ /[ \t\r\n]/) pos++
    return substr(source_text, pos, 1)
}

function expect(character) {
    if (peek() != character) fail("the arguments are not a JSON object: \"" character "\" is missing at byte " pos)
    pos++
}

function parse_scalar(    text) {
    text = substr(source_text, pos, 64)
    if (!match(text, /^[-+.0-9A-Za-z]+/)) fail("the arguments hold a value that is neither a string nor a number")
    pos += RLENGTH
    return substr(text, 1, RLENGTH)
}

function parse_string(    piece, escape) {
    pos++
    small = large = whole = ""
    while (1) {
        piece = substr(source_text, pos, 512)
        if (piece == "") fail("the arguments end within a string")
        if (!match(piece, /["\\]/)) { append(piece); pos += length(piece); continue }
        append(substr(piece, 1, RSTART - 1))
        pos += RSTART
        if (substr(piece, RSTART, 1) == "\"") return whole large small
        escape = substr(source_text, pos++, 1)
        if (escape == "u") append(parse_unicode())
        else append(escape in unescaped ? unescaped[escape] : escape)
    }
}

# awk copies a string whenever something is appended to it: in three steps, megabytes are copied a few times, not once
# for each of their lines.
function append(piece) {
    small = small piece
    if (length(small) > 4096) { large = large small; small = "" }
    if (length(large) > 262144) { whole = whole large; large = "" }
}

function parse_unicode(    code, low) {
    code = hex4()
    if (code >= 55296 && code <= 56319 && substr(source_text, pos, 2) == "\\u") {
        pos += 2
        low = hex4()
        code = 65536 + (code - 55296) * 1024 + (low - 56320)
    }
    if (code < 128) return sprintf("%c", code)
    if (code < 2048) return sprintf("%c%c", 192 + int(code / 64), 128 + code % 64)
    if (code < 65536) return sprintf("%c%c%c", 224 + int(code / 4096), 128 + int(code / 64) % 64, 128 + code % 64)
    return sprintf("%c%c%c%c", 240 + int(code / 262144), 128 + int(code / 4096) % 64, 128 + int(code / 64) % 64, 128 + code % 64)
}

function hex4(    i, value) {
    for (i = 0; i < 4; i++) value = value * 16 + index("0123456789abcdef", tolower(substr(source_text, pos + i, 1))) - 1
    pos += 4
    return value
}
