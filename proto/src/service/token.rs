//! Bearer tokens: made here, kept elsewhere as hashes. A token is 32 random bytes, so that a plain sha256 of it cannot be
//! guessed back, and looking a hash up says nothing about the token.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use http::HeaderValue;
use rustix::rand::{GetRandomFlags, getrandom};

use super::rotated::{Content, FileError, Rotated};
use crate::Digest;

/// Every token begins so: scanners for leaked secrets find them by it.
const PREFIX: &str = "sky_";
/// What a line of the tokens file looks like.
const LINE: &str = "a line is `IDENTITY sha256:HEX`, as `registry-svc token new IDENTITY` writes it";
/// Longest identity.
const MAX_IDENTITY: usize = 128;

/// A token. Its text is a secret: only [`Token::expose`] gives it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A text that is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no token: one is `sky_` and 64 hexadecimal digits, as `registry-svc token new IDENTITY` prints it")]
pub struct TokenError;

/// An identity that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no identity: write 1 to {MAX_IDENTITY} printable ASCII characters without blanks or #, as in alice")]
pub struct IdentityError(String);

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
        }
        Ok(Self(format!("{PREFIX}{}", hex::encode(bytes))))
    }

    /// Reads one, with blanks and line ends around it.
    ///
    /// # Errors
    /// The text is no token. It is not repeated in the message: it may be another secret.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let digits = text.strip_prefix(PREFIX).ok_or(TokenError)?;
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(TokenError);
        }
        Ok(Self(text.to_owned()))
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What a tokens file keeps of it.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }

    /// Its line in a tokens file.
    ///
    /// # Errors
    /// The identity cannot be one.
    pub fn line(&self, identity: &str) -> Result<String, IdentityError> {
        check_identity(identity)?;
        Ok(format!("{identity} sha256:{}", self.hash()))
    }

    /// The one token of a file.
    pub(crate) fn of_file(content: &Content) -> Result<Self, FileError> {
        Self::parse(content.text()?).map_err(|error| FileError::content(&content.path, error))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Whether a text can name a caller: it stands in files, logs and records.
///
/// # Errors
/// It cannot.
pub fn check_identity(text: &str) -> Result<(), IdentityError> {
    let fits = |b: u8| b.is_ascii_graphic() && b != b'#';
    if (1..=MAX_IDENTITY).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(());
    }
    Err(IdentityError(text.chars().take(MAX_IDENTITY).collect()))
}

/// A tokens file whose identities mean something of their own, followed when it changes.
#[derive(Debug)]
pub struct TokensFile(Rotated<Tokens>);

impl TokensFile {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be used, or has an identity that `check` refuses.
    pub fn open(path: &Path, check: fn(&str) -> Result<(), String>) -> Result<Self, FileError> {
        let load = move |contents: &[Content]| {
            let tokens = Tokens::of_file(&contents[0])?;
            let refused = tokens.identities.values().find_map(|identity| check(identity).err());
            refused.map_or(Ok(tokens), |what| Err(FileError::content(&contents[0].path, what)))
        };
        Rotated::open("tokens file", vec![path.to_owned()], load).map(Self)
    }

    /// Whose token an authorization shows.
    #[must_use]
    pub fn identity(&self, authorization: &HeaderValue) -> Option<String> {
        let token = bearer(authorization)?;
        self.0.current().identity(&token).map(ToOwned::to_owned)
    }
}

/// The scheme's name is compared without regard to case, as HTTP has it.
pub(crate) fn bearer(value: &HeaderValue) -> Option<Token> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { Token::parse(token).ok() } else { None }
}

/// Whose tokens are known, by their hashes.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    identities: HashMap<Digest, String>,
}

impl Tokens {
    /// Whose token it is.
    pub(crate) fn identity(&self, token: &Token) -> Option<&str> {
        self.identities.get(&token.hash()).map(String::as_str)
    }

    /// A tokens file: one line a token, `#` begins a comment. An identity may have several, so that they can be rotated.
    pub(crate) fn of_file(content: &Content) -> Result<Self, FileError> {
        let mut identities = HashMap::new();
        for (i, line) in content.text()?.lines().enumerate() {
            let fault = |what: &dyn fmt::Display| FileError::content(&content.path, format!("line {}: {what}", i + 1));
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(identity) = words.next() else { continue };
            let (Some(hash), None) = (words.next(), words.next()) else { return Err(fault(&LINE)) };
            check_identity(identity).map_err(|error| fault(&error))?;
            if hash.starts_with(PREFIX) || identity.starts_with(PREFIX) {
                return Err(fault(
                    &"it holds a token itself: take it out of use, and write its hash, which `registry-svc token hash` prints",
                ));
            }
            let hash: Digest = hash.strip_prefix("sha256:").and_then(|hex| hex.parse().ok()).ok_or_else(|| {
                fault(&format!("the second word is not sha256: and 64 lower-case hexadecimal digits; {LINE}"))
            })?;
            if let Some(other) = identities.insert(hash, identity.to_owned())
                && other != identity
            {
                return Err(fault(&format!(
                    "the same token stands for {other:?} above: make one of its own for {identity:?}"
                )));
            }
        }
        Ok(Self { identities })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Result<Tokens, String> {
        Tokens::of_file(&Content { path: "tokens".into(), bytes: text.into() }).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_there_and_back() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(Token::parse(&format!(" {}\n", one.expose())).unwrap(), one);
        assert_eq!(format!("{one:?}"), "Token(…)");
        let file = format!("# who\n\n{} # laptop\n", one.line("ann").unwrap());
        let known = tokens(&file).unwrap();
        assert_eq!((known.identity(&one), known.identity(&other)), (Some("ann"), None));
        for bad in ["", "sky_", "sky_00", &one.expose().to_uppercase(), &format!("{}0", one.expose())] {
            assert_eq!(Token::parse(bad), Err(TokenError), "{bad}");
        }
    }

    #[test]
    fn lines_that_are_refused() {
        let token = Token::random().unwrap();
        let line = token.line("ann").unwrap();
        let bob = token.line("bob").unwrap();
        for (file, words) in [
            ("ann".to_owned(), "line 1: a line is"),
            (format!("\n{line} x"), "line 2: a line is"),
            ("ann sha256:00".to_owned(), "line 1: the second word"),
            (format!("ann {}", token.hash()), "line 1: the second word"),
            (format!("ann {}", token.expose()), "take it out of use"),
            (format!("{line}\n{bob}"), "line 2: the same token stands for \"ann\""),
            (format!("é sha256:{}", token.hash()), "is no identity"),
        ] {
            let error = tokens(&file).unwrap_err();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains(token.expose()), "a secret is in {error}");
        }
        assert!(tokens(&format!("{line}\n{line}\n")).is_ok());
        assert!(token.line("a b").is_err());
    }
}
