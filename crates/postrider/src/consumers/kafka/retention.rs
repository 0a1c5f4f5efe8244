//! How long topics keep what is in them.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

/// The longest among these topics, as far as the cluster tells: nothing of a pattern, nor of a topic whose settings this user may not see.
pub(super) async fn longest(
    admin: &AdminClient<DefaultClientContext>,
    options: &AdminOptions,
    topics: &[String],
) -> Option<Duration> {
    let named = topics.iter().filter(|topic| !topic.starts_with('^'));
    let named: Vec<_> = named.map(|topic| ResourceSpecifier::Topic(topic.as_str())).collect();
    if named.is_empty() {
        return None;
    }
    match admin.describe_configs(&named, options).await {
        Ok(described) => described.iter().filter_map(|topic| of_topic(topic.as_ref().ok()?)).max(),
        Err(error) => {
            tracing::debug!(%error, "for how long the topics keep messages is not known");
            None
        }
    }
}

fn of_topic(topic: &ConfigResource) -> Option<Duration> {
    let value = |name: &str| topic.get(name)?.value.as_deref();
    let retention: i64 = value("retention.ms")?.parse().ok()?;
    // A topic that is compacted and nothing else keeps the last message of each key.
    let is_deleted = value("cleanup.policy").is_none_or(|policy| policy.contains("delete"));
    // -1 is no limit.
    let limit = u64::try_from(retention).ok().filter(|_| is_deleted);
    Some(limit.map_or(Duration::MAX, Duration::from_millis))
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    fn keeps(settings: &[(&str, &str)]) -> Option<Duration> {
        let entry = |(name, value): &(&str, &str)| ConfigEntry {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            source: ConfigSource::Default,
            is_read_only: false,
            is_default: true,
            is_sensitive: false,
        };
        let specifier = OwnedResourceSpecifier::Topic("t".to_owned());
        of_topic(&ConfigResource { specifier, entries: settings.iter().map(entry).collect() })
    }

    #[test]
    fn a_topic_keeps_messages_for_its_retention_unless_it_only_compacts_them() {
        let week = ("retention.ms", "604800000");
        let limit = Some(Duration::from_hours(7 * 24));
        assert_eq!(keeps(&[week]), limit);
        assert_eq!(keeps(&[week, ("cleanup.policy", "compact,delete")]), limit);
        assert_eq!(keeps(&[week, ("cleanup.policy", "compact")]), Some(Duration::MAX));
        assert_eq!(keeps(&[("retention.ms", "-1")]), Some(Duration::MAX));
        assert_eq!(keeps(&[]), None);
    }
}
