#include "common/job/data/held_out.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace nsa {

HeldOutTokens HeldOutTokensOf(int64_t tokens, double fraction, int32_t seq_len) {
  HeldOutTokens held_out;
  held_out.sequence = int64_t{seq_len} + 1;
  held_out.asked = fraction * static_cast<double>(tokens);
  held_out.wanted = std::max<int64_t>(held_out.sequence, std::llround(held_out.asked));
  held_out.least =
      std::max(held_out.sequence, static_cast<int64_t>(std::ceil(held_out.asked / kHeldOutFactor)));
  held_out.most = static_cast<int64_t>(kHeldOutFactor * static_cast<double>(held_out.wanted));
  return held_out;
}

std::string HeldOutShareText(int64_t held_out, int64_t tokens, double fraction) {
  const double asked = fraction * static_cast<double>(tokens);
  const auto held = static_cast<double>(held_out);
  if (held <= kHeldOutFactor * asked && asked <= kHeldOutFactor * held) return "";
  return absl::StrFormat(
      "data.val_fraction: %g (it holds out %d of %d tokens, %.2g %%); add data, change it, or name "
      "validation files in data.val_path",
      fraction, held_out, tokens, 100 * held / static_cast<double>(tokens));
}

}  // namespace nsa
