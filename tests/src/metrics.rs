//! What a service tells Prometheus, as a scraper sees it: by plain HTTP, parsed, and never what is no OpenMetrics text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// By the name with its labels, as it is written.
    series: BTreeMap<String, f64>,
    /// Names as rules use them: with `_total` for counters, without a suffix for histograms.
    names: BTreeSet<String>,
}

/// The status and the whole answer of a GET by plain HTTP.
///
/// # Panics
/// When nobody answers.
pub async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

impl Scrape {
    /// Of this admin port.
    ///
    /// # Panics
    /// When what it tells is no OpenMetrics text: a name twice, a sample of no described metric, no end.
    pub async fn of(address: SocketAddr) -> Self {
        let (code, answer) = get(address, "/metrics").await;
        assert_eq!(code, 200, "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let (mut series, mut names, mut described, mut ended) =
            (BTreeMap::new(), BTreeSet::new(), String::new(), false);
        // Lengths of chunks are lines of their own where the answer comes in chunks.
        for line in body.lines().map(str::trim_end).filter(|line| line.contains(' ')) {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap();
                name.clone_into(&mut described);
                let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
                assert!(names.insert(name), "{line} is there twice");
            } else if line == "# EOF" {
                ended = true;
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(name.starts_with(&described), "{line} is not of {described}");
                assert!(series.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} is there twice");
            }
        }
        assert!(ended, "the text has no end: {body}");
        Self { series, names }
    }

    /// The value of a series, as `name{label="value"}`; `None` where it is not told.
    #[must_use]
    pub fn get(&self, series: &str) -> Option<f64> {
        self.series.get(series).copied()
    }

    /// The same of one that is told.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn value(&self, series: &str) -> f64 {
        self.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.series))
    }

    /// What is told at all.
    #[must_use]
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }
}
