//! Where spans go: to a collector, by OTLP over gRPC, where one is named and the program was built with the feature `otlp`.

use tonic::transport::Uri;

/// A collector, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    collector: Option<Uri>,
    service: String,
}

/// Spans are exported while it lives.
#[derive(Debug, Default)]
pub struct Exporting {
    #[cfg(feature = "otlp")]
    exporter: Option<super::otlp::Exporter>,
}

impl Export {
    /// To the collector at this URL, if there is one, in the name of this service.
    ///
    /// # Errors
    /// What is wrong with the URL, and what to write instead.
    pub fn check(url: Option<&str>, service: &str) -> Result<Self, String> {
        let Some(url) = url.filter(|url| !url.is_empty()) else { return Ok(Self::default()) };
        let uri = url.parse::<Uri>().ok().filter(|uri| uri.authority().is_some() && uri.scheme_str() == Some("http"));
        match uri {
            Some(uri) => Ok(Self { collector: Some(uri), service: service.to_owned() }),
            // Another's variable says so too: without the means to export, it is no fault.
            None if !cfg!(feature = "otlp") => {
                Ok(Self { collector: Some(Uri::default()), service: service.to_owned() })
            }
            None => Err(format!(
                "{url:?} is no collector of ours: write http://HOST:4317, where one takes OTLP by gRPC without TLS, on this host \
                 or in this cluster"
            )),
        }
    }

    /// Exports the spans of this process from now on. `instance` is which one of its service it is; empty where there is
    /// one. To be called in a runtime.
    #[must_use]
    pub fn start(self, instance: &str) -> Exporting {
        let Some(collector) = self.collector else { return Exporting::default() };
        #[cfg(feature = "otlp")]
        {
            let exporter = super::otlp::Exporter::start(collector, &self.service, instance);
            Exporting { exporter: Some(exporter) }
        }
        #[cfg(not(feature = "otlp"))]
        {
            let _ = (collector, instance);
            tracing::warn!(
                "spans are not exported: this program was built without OTLP, and --otlp-endpoint \
                 (OTEL_EXPORTER_OTLP_ENDPOINT) is given; build it with `--features otlp`. Traces are in the log all the same"
            );
            Exporting::default()
        }
    }
}

impl Exporting {
    /// Sends what has ended, for some seconds at most.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(clippy::unused_async, reason = "there is nothing to wait for without OTLP")
    )]
    pub async fn finish(self) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = self.exporter {
            exporter.finish().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors() {
        for none in [None, Some("")] {
            assert_eq!(Export::check(none, "x"), Ok(Export::default()));
        }
        assert!(Export::check(Some("http://collector.monitoring:4317"), "x").is_ok());
        for bad in ["collector:4317", "https://collector:4317", "http://"] {
            assert_eq!(Export::check(Some(bad), "x").is_err(), cfg!(feature = "otlp"), "{bad}");
        }
    }
}
