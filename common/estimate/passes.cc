#include "common/estimate/passes.h"

#include <algorithm>
#include <limits>

#include "common/estimate/estimate.h"

namespace nsa {
namespace {

// From here on a pass is nearly as fast a token as larger ones: with m7c on an H200 4,096 tokens
// reach about 0.7 of the speed of 65,536.
constexpr int64_t kTokensOfAPass = 16384;
constexpr double kMoreBytes = 6.0 * (1 << 30);

// Activations of a token without checkpointing, about: 20 values of bf16 for each column of each
// block, logits and their gradient. m7c takes 356 KB a token, and this says 370.
// In floating point: the spec may be one that preflight has not seen.
double BytesOfAToken(const v1::JobSpec& spec) {
  return 40.0 * spec.model().n_layers() * spec.model().dim() + 4.0 * VocabOf(spec);
}

// Groups of ranks that share sequences.
int32_t GroupsOf(const v1::JobSpec& spec, int32_t ranks) {
  return std::max(1, ranks / ContextOf(spec));
}

}  // namespace

int32_t RanksOf(const v1::JobSpec& spec) { return std::max(1, spec.resources().gpus()); }

int32_t ContextOf(const v1::JobSpec& spec) {
  return std::max(1, spec.resources().context_parallel());
}

Passes PassesOf(const v1::JobSpec& spec, int32_t ranks) {
  const int32_t micro_batches = std::max(1, spec.train().accumulate_grad_batches());
  const int32_t sequences = spec.train().batch_size() / GroupsOf(spec, ranks);
  const bool cuda = spec.runtime().device() != v1::DEVICE_CPU;
  const int32_t merged = cuda ? std::max(1, spec.runtime().merge_micro_batches()) : 1;
  if (micro_batches % merged != 0) return {micro_batches, 1, sequences};
  // Clamped for a spec that preflight has not seen.
  const int64_t all = int64_t{sequences} * merged;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return {micro_batches / merged, merged, static_cast<int32_t>(std::clamp(all, -kMost, kMost))};
}

Passes PassesOf(const v1::JobSpec& spec) { return PassesOf(spec, RanksOf(spec)); }

int64_t RankTokens(const v1::JobSpec& spec) {
  return int64_t{PassesOf(spec).sequences} * spec.train().seq_len() / ContextOf(spec);
}

NsaShape RankShapeOf(const v1::JobSpec& spec) {
  NsaShape shape = ShapeOf(spec);
  // What is not divided by it, CONTEXT_PARALLEL reports; what is below 1, the rules of shapes.
  const auto share = [&spec](int32_t all) {
    return all < 1 ? all : std::max(1, all / ContextOf(spec));
  };
  shape.n_heads = share(shape.n_heads);
  shape.n_kv_groups = share(shape.n_kv_groups);
  return shape;
}

int32_t DefaultMerge(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  const int64_t tokens = train.batch_size() / GroupsOf(spec, RanksOf(spec)) *
                         int64_t{train.seq_len()} / ContextOf(spec);
  if (tokens < 1 || tokens > kTokensOfAPass) return 1;
  int32_t best = 1;
  for (int32_t merged = 2; merged <= train.accumulate_grad_batches(); ++merged) {
    if (merged * tokens > kTokensOfAPass) break;
    const double more = static_cast<double>((merged - 1) * tokens) * BytesOfAToken(spec);
    if (train.accumulate_grad_batches() % merged == 0 && more <= kMoreBytes) best = merged;
  }
  return best;
}

}  // namespace nsa
