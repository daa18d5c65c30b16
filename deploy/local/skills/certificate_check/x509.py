"""Reads the few fields of an X.509 certificate that tell whose it is and how long it is valid (RFC 5280, DER).

Checks no signature: what it returns is what the certificate says.
"""

import base64
import ipaddress
import re
from datetime import datetime, timezone

BLOCK = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----\s*(.*?)-----END (?:X509 |TRUSTED )?CERTIFICATE-----", re.DOTALL
)
INTEGER, OCTET_STRING, OID, SEQUENCE = 0x02, 0x04, 0x06, 0x30
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
VERSION, EXTENSIONS = 0xA0, 0xA3
UTF8_STRING, BMP_STRING = 0x0C, 0x1E
DNS_NAME, IP_ADDRESS = 0x82, 0x87
SUBJECT_ALT_NAME = "2.5.29.17"
NAME_PARTS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.10": "O", "2.5.4.11": "OU",
    "2.5.4.5": "serialNumber", "0.9.2342.19200300.100.1.25": "DC",
}


class Malformed(Exception):
    """Not a certificate, or one that breaks the rules of DER."""


def certificates(pem):
    """The DER of every certificate block, in order. Keys and other blocks are passed over."""
    for block in BLOCK.finditer(pem):
        try:
            # Old OpenSSL puts headers before the base64, with an empty line between them.
            yield base64.b64decode(block[1].split(b"\n\n")[-1], validate=False)
        except ValueError as error:
            raise Malformed(f"a block is not base64: {error}") from None


def parse(der):
    """A certificate's serial number, subject, issuer, names and dates."""
    tag, certificate, _ = element(der, 0)
    require(tag, SEQUENCE, "the certificate")
    tag, body, _ = element(certificate, 0)
    require(tag, SEQUENCE, "the certificate's body")
    fields = list(elements(body))
    if fields and fields[0][0] == VERSION:
        fields.pop(0)
    if len(fields) < 6:
        raise Malformed("the certificate's body is too short")
    (serial_tag, serial), _, (_, issuer), (_, validity), (_, subject) = fields[:5]
    require(serial_tag, INTEGER, "the serial number")
    dates = [moment(tag, value) for tag, value in elements(validity)]
    if len(dates) != 2:
        raise Malformed("the validity is not two dates")
    names = []
    for tag, value in fields[6:]:
        if tag == EXTENSIONS:
            names = alternative_names(value)
    return {
        "subject": name(subject),
        "issuer": name(issuer),
        "serial": serial.hex(),
        "names": names,
        "not_before": dates[0],
        "not_after": dates[1],
    }


def element(data, at):
    """The tag and the content of the element at `at`, and where the next one begins."""
    header = data[at : at + 2]
    if len(header) < 2:
        raise Malformed("the certificate ends within a field")
    tag, length = header
    at += 2
    if length & 0x80:
        size = length & 0x7F
        if not 1 <= size <= 4 or at + size > len(data):
            raise Malformed("a field has an impossible length")
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    if at + length > len(data):
        raise Malformed("the certificate ends within a field")
    return tag, data[at : at + length], at + length


def elements(data):
    at = 0
    while at < len(data):
        tag, content, at = element(data, at)
        yield tag, content


def require(tag, wanted, what):
    if tag != wanted:
        raise Malformed(f"{what} is not where it has to be")


def moment(tag, value):
    text = value.decode("ascii", "replace")
    try:
        if tag == UTC_TIME:
            # RFC 5280: two digits of a year from 50 on are of the 1900s. strptime would say from 69 on.
            century = "19" if int(text[:2]) >= 50 else "20"
            text = century + text
        elif tag != GENERALIZED_TIME:
            raise Malformed("the validity holds something other than a date")
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        raise Malformed(f"{text!r} is not a date of a certificate") from None


def name(data):
    parts = []
    for _, relative in elements(data):
        for _, pair in elements(relative):
            fields = list(elements(pair))
            if len(fields) == 2 and fields[0][0] == OID:
                oid = identifier(fields[0][1])
                parts.append(f"{NAME_PARTS.get(oid, oid)}={string(*fields[1])}")
    return ", ".join(parts)


def string(tag, value):
    if tag == BMP_STRING:
        return value.decode("utf-16-be", "replace")
    return value.decode("utf-8" if tag == UTF8_STRING else "latin-1", "replace")


def identifier(data):
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise Malformed("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(str(part) for part in [first, numbers[0] - 40 * first, *numbers[1:]])


def alternative_names(data):
    _, extensions, _ = element(data, 0)
    for _, extension in elements(extensions):
        fields = list(elements(extension))
        if fields and fields[0][0] == OID and identifier(fields[0][1]) == SUBJECT_ALT_NAME:
            tag, content = fields[-1]
            require(tag, OCTET_STRING, "an extension's value")
            _, general_names, _ = element(content, 0)
            return [shown for tag, value in elements(general_names) if (shown := alternative_name(tag, value))]
    return []


def alternative_name(tag, value):
    if tag == DNS_NAME:
        return value.decode("latin-1")
    if tag == IP_ADDRESS and len(value) in (4, 16):
        return str(ipaddress.ip_address(value))
    return None
