#include "worker/train/score/draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace nsa::train {
namespace {

int32_t Likeliest(std::span<const float> logits, int32_t excluded) {
  int32_t best = excluded == 0 ? 1 : 0;
  for (int32_t v = 0; v < static_cast<int32_t>(logits.size()); ++v) {
    if (v != excluded && logits[v] > logits[best]) best = v;
  }
  return best;
}

// Sets the weights of all tokens to 0 that top_k and top_p take away. Tokens leave a heap in the
// order of their weights, until enough are there: a vocabulary need not be sorted.
void Truncate(const DrawOptions& options, double sum, std::vector<double>* weights) {
  std::vector<int32_t> heap(weights->size());
  std::iota(heap.begin(), heap.end(), 0);
  const auto less = [weights](int32_t a, int32_t b) {
    const double x = (*weights)[a], y = (*weights)[b];
    return x != y ? x < y : a > b;
  };
  std::make_heap(heap.begin(), heap.end(), less);
  // The k most probable tokens, or those that together have the probability top_p.
  std::vector<int32_t> first;
  const size_t most = options.top_k > 0 ? static_cast<size_t>(options.top_k) : heap.size();
  double mass = 0;
  while (!heap.empty() && first.size() < most &&
         (options.top_k > 0 || mass < options.top_p * sum)) {
    std::pop_heap(heap.begin(), heap.end(), less);
    first.push_back(heap.back());
    heap.pop_back();
    mass += (*weights)[first.back()];
  }
  // Those of the k that together have top_p of the k's probability.
  const double wanted = options.top_k > 0 ? options.top_p * mass : mass;
  std::vector<double> kept(weights->size(), 0.0);
  mass = 0;
  for (size_t i = 0; i < first.size() && (i == 0 || mass < wanted); ++i) {
    mass += kept[first[i]] = (*weights)[first[i]];
  }
  *weights = std::move(kept);
}

}  // namespace

absl::Status CheckDraw(const DrawOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("temperature: %g (at least 0); take 0.8", options.temperature));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("top-k: %d (at least 0); take 0 for all tokens", options.top_k));
  }
  if (!(options.top_p > 0) || options.top_p > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "top-p: %g (more than 0, at most 1); take 1 for all tokens", options.top_p));
  }
  return absl::OkStatus();
}

int32_t DrawToken(std::span<const float> logits, const DrawOptions& options, double uniform,
                  int32_t excluded) {
  const int32_t best = Likeliest(logits, excluded);
  if (options.temperature <= 0) return best;
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    const bool out = static_cast<int32_t>(v) == excluded;
    weights[v] =
        out ? 0 : std::exp((double{logits[v]} - double{logits[best]}) / options.temperature);
    sum += weights[v];
  }
  if (options.top_k > 0 || options.top_p < 1) {
    Truncate(options, sum, &weights);
    sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  double left = uniform * sum;
  for (size_t v = 0; v < logits.size(); ++v) {
    left -= weights[v];
    if (left < 0) return static_cast<int32_t>(v);
  }
  return best;  // reached only because of rounding errors in `left`
}

}  // namespace nsa::train
