//! A histogram of durations that takes no lock: whoever observes adds to two atomics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Durations, counted by their upper bounds.
#[derive(Debug)]
pub struct Histogram {
    /// In seconds, ascending; what is longer than the last is in one bucket more.
    bounds: &'static [f64],
    buckets: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Empty, with these bounds in seconds, ascending.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, nanoseconds: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(|count| count.load(Ordering::Relaxed))).collect();
        // The sum may be of one more than the buckets, or of one less: a reader sees a moment about now.
        let sum = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl EncodeMetric for &Histogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        (**self).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::{Registry, Unit};

    #[derive(Debug)]
    struct Told(Histogram);

    impl prometheus_client::collector::Collector for Told {
        fn encode(&self, mut encoder: prometheus_client::encoding::DescriptorEncoder<'_>) -> fmt::Result {
            let metric = &self.0;
            metric.encode(encoder.encode_descriptor("took", "x", Some(&Unit::Seconds), metric.metric_type())?)
        }
    }

    #[test]
    fn a_bound_is_in_its_bucket_and_buckets_add_up() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for milliseconds in [100, 500, 501, 1000, 60_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Told(histogram)));
        encode(&mut text, &registry).unwrap();
        for line in [
            "took_seconds_sum 62.101",
            "took_seconds_count 5",
            "took_seconds_bucket{le=\"0.5\"} 2",
            "took_seconds_bucket{le=\"1.0\"} 4",
            "took_seconds_bucket{le=\"+Inf\"} 5",
        ] {
            assert!(text.lines().any(|told| told == line), "{line}: {text}");
        }
    }
}
