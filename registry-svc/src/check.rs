//! `registry-svc check`: the load report for the authors of skills and their CI, without a server. What it says is what
//! a registry would say, by the same discovery and the same parsers.

mod kinds;
mod print;
mod target;

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::catalog::load::{Scanned, load};
use crate::source::{Diagnostic, Host, Look, Severity, SkillScan};
use kinds::Kinds;
use target::{Target, TargetError};

const FOUND_SOMETHING: u8 = 1;
/// The exit code for a command line that cannot be used, or an output that cannot be written.
pub const USAGE: u8 = 2;

/// Says what is wrong with skills before a registry does
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 nothing is an error (with --strict: nor a warning, and each path has a skill), \
                        1 something is, 2 bad command line.")]
pub struct CheckArgs {
    /// Warnings count as errors do, and the Agent Skills specification is held to where Skillyard asks for more
    #[arg(long)]
    strict: bool,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Roots, looked at as both kinds; or the directory, SKILL.md or skill.json of one skill
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A line a problem, and a summary
    Text,
    /// An array of all that was found
    Json,
}

/// What became of a file that could be a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Checked {
    /// Below the path that was given.
    path: PathBuf,
    name: String,
    registered: bool,
    diagnostics: Vec<Diagnostic>,
}

impl Checked {
    fn count(&self, severity: Severity) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count()
    }
}

/// Looks, prints, and gives the exit code. `host` is what playbooks' requirements are held against.
pub fn run(args: &CheckArgs, host: Host) -> u8 {
    run_to(args, host, &mut io::stdout().lock(), &mut io::stderr().lock())
}

fn run_to(args: &CheckArgs, host: Host, out: &mut impl Write, err: &mut impl Write) -> u8 {
    let (targets, faults): (Vec<_>, Vec<_>) = args.paths.iter().map(|path| Target::of(path)).partition(Result::is_ok);
    for TargetError { path, what } in faults.iter().filter_map(|fault| fault.as_ref().err()) {
        // Where stderr is closed there is nobody to tell.
        let _ = writeln!(err, "registry-svc check: {}", print::on_one_line(&format!("{}: {what}", path.display())));
    }
    if !faults.is_empty() {
        return USAGE;
    }
    let targets: Vec<_> = targets.into_iter().flatten().collect();
    let (owners, checked): (Vec<_>, Vec<_>) = check(&targets, args.strict, host).into_iter().unzip();
    let bare = without_skills(&owners, &checked, args.paths.len());
    let printed = match args.format {
        Format::Text => print::text(&checked, out),
        Format::Json => print::json(&checked, out),
    };
    match printed {
        // Who closed the pipe has seen enough; the answer is the exit code.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(err, "registry-svc check: the answer cannot be written: {error}");
            USAGE
        }
        _ => {
            for path in bare.iter().map(|&index| args.paths[index].display()) {
                let line = format!("{path}: no skill is there: a skill.json, or the directory of a SKILL.md");
                let _ = writeln!(err, "registry-svc check: {}", print::on_one_line(&line));
            }
            if args.strict && !bare.is_empty() { FOUND_SOMETHING } else { exit_code(&checked, args.strict) }
        }
    }
}

/// The targets of which no skill is registered though nothing is an error: whoever names them believes that there is one.
fn without_skills(owners: &[usize], checked: &[Checked], targets: usize) -> Vec<usize> {
    let says_why = |one: &Checked| one.registered || one.count(Severity::Error) > 0;
    let explained = |index: usize| owners.iter().zip(checked).any(|(&owner, one)| owner == index && says_why(one));
    (0..targets).filter(|&index| !explained(index)).collect()
}

fn exit_code(checked: &[Checked], strict: bool) -> u8 {
    let counts = |severity| checked.iter().any(|checked| checked.count(severity) > 0);
    match counts(Severity::Error) || (strict && counts(Severity::Warning)) {
        true => FOUND_SOMETHING,
        false => 0,
    }
}

/// All that was found, with the targets' places, in order of these and then of the paths.
fn check(targets: &[Target], strict: bool, host: Host) -> Vec<(usize, Checked)> {
    let look = Look { host: Some(host), strict, within: None };
    let mut known = HashSet::new();
    let (mut external, mut playbooks) = (Vec::new(), Vec::new());
    for (index, target) in targets.iter().enumerate() {
        let Kinds { programs, books } = Kinds::of(target, &look);
        external.extend(programs.into_iter().map(|scan| (index, each_once(scan, &mut known))));
        playbooks.extend(books.into_iter().map(|scan| (index, each_once(scan, &mut known))));
    }
    // As a registry orders them, so that of two skills with one name the same one wins.
    external.append(&mut playbooks);
    let (owners, scans): (Vec<_>, Vec<_>) =
        external.into_iter().map(|(index, scan)| (index, Arc::new(Scanned::Skills(scan)))).unzip();
    let catalog = load(&scans, SystemTime::UNIX_EPOCH, None);
    let mut checked: Vec<_> = catalog
        .report()
        .candidates
        .iter()
        .map(|candidate| {
            let index = owners[candidate.key.root];
            let checked = Checked {
                path: targets[index].shown(&candidate.key.path),
                name: candidate.name.to_string(),
                registered: candidate.is_registered(),
                diagnostics: candidate.diagnostics.clone(),
            };
            (index, checked)
        })
        .collect();
    checked.sort_by(|(a, one), (b, other)| (a, &one.path).cmp(&(b, &other.path)));
    checked
}

/// Without what another path led to already: it would be taken for a second skill of the name.
fn each_once(mut scan: SkillScan, known: &mut HashSet<PathBuf>) -> SkillScan {
    scan.candidates.retain(|candidate| {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        // The last part may be a link to another skill's file, which is a fault of this one.
        let path = match (candidate.path.parent(), candidate.path.file_name()) {
            (Some(directory), Some(name)) => real(directory).join(name),
            _ => real(&candidate.path),
        };
        known.insert(path)
    });
    scan
}
