//! How a collector tells its figures: one call a metric, with a row for each set of labels. What has no row is not told.

use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::histogram::Histogram;

/// What a metric is: its name without the service's prefix, what it says, and its unit.
#[derive(Clone, Copy, Debug)]
pub struct Metric<'a> {
    name: &'a str,
    help: &'a str,
    unit: Option<&'a Unit>,
}

/// A metric without a unit.
#[must_use]
pub fn metric<'a>(name: &'a str, help: &'a str) -> Metric<'a> {
    Metric { name, help, unit: None }
}

impl<'a> Metric<'a> {
    /// The same in seconds, which its name then ends in.
    #[must_use]
    pub fn seconds(self) -> Self {
        Self { unit: Some(&Unit::Seconds), ..self }
    }

    /// The same in bytes, which its name then ends in.
    #[must_use]
    pub fn bytes(self) -> Self {
        Self { unit: Some(&Unit::Bytes), ..self }
    }
}

/// Takes the figures of one scrape.
#[derive(Debug)]
pub struct Figures<'a>(DescriptorEncoder<'a>);

impl<'a> From<DescriptorEncoder<'a>> for Figures<'a> {
    fn from(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }
}

impl Figures<'_> {
    /// What is so now.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn gauge(&mut self, metric: Metric<'_>, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.describe(metric, MetricType::Gauge)?)
    }

    /// The same for each of some labels.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        metric: Metric<'_>,
        rows: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family(metric, MetricType::Gauge, rows.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
    }

    /// How often, since the start.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn counter(&mut self, metric: Metric<'_>, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.describe(metric, MetricType::Counter)?)
    }

    /// The same for each of some labels.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        metric: Metric<'_>,
        rows: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let rows = rows.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.family(metric, MetricType::Counter, rows)
    }

    /// How much in all since the start, of what is no whole number.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn sums<L: EncodeLabelSet>(
        &mut self,
        metric: Metric<'_>,
        rows: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let rows = rows.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.family(metric, MetricType::Counter, rows)
    }

    /// How long things took.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn histogram(&mut self, metric: Metric<'_>, histogram: &Histogram) -> fmt::Result {
        histogram.encode(self.describe(metric.seconds(), MetricType::Histogram)?)
    }

    /// The same for each of some labels.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn histograms<'h, L: EncodeLabelSet>(
        &mut self,
        metric: Metric<'_>,
        rows: impl IntoIterator<Item = (L, &'h Histogram)>,
    ) -> fmt::Result {
        self.family(metric.seconds(), MetricType::Histogram, rows.into_iter())
    }

    fn family<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        metric: Metric<'_>,
        kind: MetricType,
        rows: impl Iterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut family = self.describe(metric, kind)?;
        for (labels, value) in rows {
            value.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn describe<'s>(&'s mut self, metric: Metric<'s>, kind: MetricType) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(metric.name, metric.help, metric.unit, kind)
    }
}

/// When a service was started.
#[derive(Debug)]
pub struct StartTime(SystemTime);

impl StartTime {
    /// Just now.
    #[must_use]
    pub fn now() -> Self {
        Self(SystemTime::now())
    }
}

impl Collector for StartTime {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let metric = metric("start_time", "When it was started, in Unix time").seconds();
        Figures::from(encoder).gauge(metric, since.as_secs_f64())
    }
}

/// A number of things as a gauge has it.
#[must_use]
pub fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
