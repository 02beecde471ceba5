//! A page of metrics (Prometheus text) as numbers.
//! What it deliberately does not do: histograms beyond their `_sum`, `_count` and buckets as lines.

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Page(String);

impl Page {
    /// The text of `/metrics`.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The value of the one series of a family that has all these labels, written `name="value"`.
    ///
    /// # Panics
    /// When there is no such series, or more than one: a test that asks for it is wrong then.
    #[expect(clippy::panic, reason = "the page is what explains the failure")]
    #[must_use]
    #[track_caller]
    pub fn value(&self, family: &str, labels: &[&str]) -> f64 {
        let mut found = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            let here = name == family && labels.iter().all(|label| rest.contains(label));
            here.then(|| value.parse::<f64>().expect("values are numbers"))
        });
        let value = found.next();
        assert!(found.next().is_none(), "several {family} with {labels:?}");
        value.unwrap_or_else(|| panic!("no {family} with {labels:?} in:\n{}", self.0))
    }

    /// The text, for failures.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}
