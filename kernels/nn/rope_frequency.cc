#include "kernels/nn/rope_frequency.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_format.h"

namespace nsa {
namespace {

// The pair, as a real number, that turns so many times in `tokens` tokens.
double PairOf(double turns, double base, int head_dim, double tokens) {
  return head_dim * std::log(tokens / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

// How much of the frequency stays, 0 to 1.
double Kept(double base, int pair, int head_dim, double frequency, const RopeScaling& s) {
  if (s.kind == RopeScaling::Kind::kLlama3) {
    const double turns = s.original * frequency / (2 * std::numbers::pi);
    return std::clamp((turns - s.low) / (s.high - s.low), 0.0, 1.0);
  }
  const double first = std::max(std::floor(PairOf(s.high, base, head_dim, s.original)), 0.0);
  const double last =
      std::min(std::ceil(PairOf(s.low, base, head_dim, s.original)), head_dim - 1.0);
  const double width = last == first ? 0.001 : last - first;  // as the paper's code has it
  return 1 - std::clamp((pair - first) / width, 0.0, 1.0);
}

}  // namespace

absl::Status Validate(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return absl::OkStatus();
  const auto refuse = [](const char* field, double value, const char* limit) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_scaling.%s: %g (%s); correct it", field, value, limit));
  };
  const auto inside = [](double value, double least) {
    return value >= least && std::isfinite(value);
  };
  if (!inside(scaling.factor, 1)) return refuse("factor", scaling.factor, "1 or more");
  if (!inside(scaling.original, 1)) return refuse("original", scaling.original, "1 or more");
  if (!(scaling.low > 0)) return refuse("low", scaling.low, "above 0");
  if (!(scaling.high > scaling.low) || !std::isfinite(scaling.high)) {
    return refuse("high", scaling.high, "above low");
  }
  return absl::OkStatus();
}

double RopeFrequency(double base, int pair, int head_dim, const RopeScaling& scaling) {
  const double frequency = std::pow(base, -2.0 * pair / head_dim);
  if (scaling.kind == RopeScaling::Kind::kNone) return frequency;
  const double kept = Kept(base, pair, head_dim, frequency, scaling);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace nsa
