//! Token counts that overlap on the wire.

use cantle_core::usage::TokenUsage;

/// Returns disjoint counts of an input that includes tokens read from and written to a cache, and an output that
/// includes reasoning.
pub(crate) fn disjoint_usage(
    input: Option<u64>,
    [cache_read, cache_write]: [Option<u64>; 2],
    output: Option<u64>,
    reasoning: Option<u64>,
) -> TokenUsage {
    let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
    let cache_read = cache_read.unwrap_or(0).min(input);
    let cache_write = cache_write.unwrap_or(0).min(input - cache_read);
    let reasoning = reasoning.unwrap_or(0).min(output);
    TokenUsage {
        input: input - cache_read - cache_write,
        cache_read,
        cache_write,
        answer: output - reasoning,
        reasoning,
    }
}
