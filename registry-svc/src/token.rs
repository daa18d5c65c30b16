//! `registry-svc token`: makes tokens and hashes them for a tokens file. A token is printed once, and kept nowhere.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use skillyard::service::token::{IdentityError, Token, TokenError};

/// No token is near it.
const MAX_INPUT: u64 = 4 << 10;

/// What can be done with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Makes a token for a caller: the token goes to stdout, its line for the tokens file to stderr
    New {
        /// Whose token it is, as the callers file names it
        identity: String,
        /// Append the line to this tokens file instead of printing it; made where it is missing
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Reads a token on stdin, and prints its hash, or its line for the tokens file
    Hash {
        /// Whose token it is
        identity: Option<String>,
    },
}

/// Why there is no token, or no hash.
#[derive(Debug, thiserror::Error)]
pub enum TokenCommandError {
    /// The identity cannot be one.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// What came on stdin is no token.
    #[error("what came on stdin cannot be hashed: {0}")]
    Token(#[from] TokenError),
    /// Random bytes, stdin or stdout failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The tokens file cannot be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl TokenCommand {
    /// Does it.
    ///
    /// # Errors
    /// See [`TokenCommandError`].
    pub fn run(&self) -> Result<(), TokenCommandError> {
        match self {
            Self::New { identity, file } => {
                let token = Token::random()?;
                let line = token.line(identity)?;
                match file {
                    Some(path) => {
                        append(path, &line).map_err(|source| TokenCommandError::File { path: path.clone(), source })?;
                    }
                    None => writeln!(io::stderr(), "{line}")?,
                }
                writeln!(io::stdout(), "{}", token.expose())?;
            }
            Self::Hash { identity } => {
                let mut text = String::new();
                io::stdin().take(MAX_INPUT).read_to_string(&mut text)?;
                let token = Token::parse(&text)?;
                match identity {
                    Some(identity) => writeln!(io::stdout(), "{}", token.line(identity)?)?,
                    None => writeln!(io::stdout(), "sha256:{}", token.hash())?,
                }
            }
        }
        Ok(())
    }
}

/// Adds a line in one write, so that a service that reads the file meanwhile sees it whole.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let gap = if last == *b"\n" { "" } else { "\n" };
    file.write_all(format!("{gap}{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_whole() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        append(&path, "a").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "a\n# no end").unwrap();
        append(&path, "b").unwrap();
        append(&path, "c").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\n# no end\nb\nc\n");
    }
}
