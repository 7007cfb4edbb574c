"""The process of `sluicegate analytics consume`: batches from Kafka into a home."""
