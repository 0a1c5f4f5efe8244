//! Which partition a key is in.

/// As Kafka's own clients choose it (murmur2), so that events of a key meet what others have sent for that key.
///
/// It is chosen here and not by the client library, which may learn of new partitions between two events of a batch: then the later one
/// would go elsewhere while the earlier is not confirmed.
pub(super) fn partition_of(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & 0x7fff_ffff).cast_signed() % partitions.max(1)
}

fn murmur2(data: &[u8]) -> u32 {
    const MIX: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    // Kafka's clients count in 32 bits.
    #[expect(clippy::cast_possible_truncation, reason = "a key has no 4 GiB")]
    let mut hash = SEED ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MIX);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MIX) ^ word.wrapping_mul(MIX);
    }
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that Kafka's own tests have.
    #[test]
    fn it_is_the_hash_of_kafkas_clients() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
        assert_eq!(partition_of(b"21", 1), 0);
    }
}
