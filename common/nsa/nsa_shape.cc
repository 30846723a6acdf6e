#include "common/nsa/nsa_shape.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa {
namespace {

using Problem = std::optional<ShapeProblem>;

Problem Outside(const char* field, int64_t value, std::string limit, std::string fix) {
  return ShapeProblem{field, value, std::move(limit), std::move(fix)};
}

Problem CheckHeads(const NsaShape& s) {
  if (s.n_heads < 1) return Outside("n_heads", s.n_heads, "at least 1", "set it");
  if (s.n_kv_groups < 1) return Outside("n_kv_groups", s.n_kv_groups, "at least 1", "set it");
  if (s.n_heads % s.n_kv_groups != 0) {
    return Outside("n_kv_groups", s.n_kv_groups, absl::StrCat("divides n_heads ", s.n_heads),
                   "take a divisor of n_heads");
  }
  if (s.heads_per_group() > 16) {
    return Outside("n_heads", s.n_heads,
                   absl::StrCat("at most 16 heads in a group, n_kv_groups is ", s.n_kv_groups),
                   "take more groups or fewer heads");
  }
  return std::nullopt;
}

Problem CheckWidths(const NsaShape& s) {
  const auto common = [](int32_t width) {
    return width == 16 || width == 32 || width == 64 || width == 128;
  };
  if (!common(s.d_k) && s.d_k != 192) {
    return Outside("d_k", s.d_k, "must be 16, 32, 64, 128 or 192", "take one of these");
  }
  if (!common(s.d_v))
    return Outside("d_v", s.d_v, "must be 16, 32, 64 or 128", "take one of these");
  return std::nullopt;
}

Problem CheckBlocks(const NsaShape& s) {
  if (s.l < 1 || s.l > 128)
    return Outside("l", s.l, "from 1 to 128", "take a length within, e.g. 32");
  if (s.d < 1 || s.d > s.l) {
    return Outside("d", s.d, absl::StrCat("from 1 to l = ", s.l), "take l / 2");
  }
  if (s.l % s.d != 0) {
    return Outside("d", s.d, absl::StrCat("must divide l = ", s.l), "take a divisor of l");
  }
  if (s.l_sel < 1 || s.l_sel > 256)
    return Outside("l_sel", s.l_sel, "from 1 to 256", "take a length within, e.g. 64");
  if (s.l_sel % s.d != 0) {
    return Outside("l_sel", s.l_sel, absl::StrCat("must be a multiple of d = ", s.d),
                   "take a multiple of d");
  }
  if (s.n_sel < 3 || s.n_sel > 64) {
    return Outside("n_sel", s.n_sel, "from 3 to 64, three blocks are forced",
                   "take a number within, e.g. 16");
  }
  if (s.window < 1)
    return Outside("w", s.window, "at least 1", "take a window of at least 1, e.g. 512");
  return std::nullopt;
}

}  // namespace

absl::Status ShapeProblem::ToStatus() const {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " (", limit, "); ", fix));
}

std::optional<ShapeProblem> NsaShape::FindProblem() const {
  if (batch < 1) return Outside("batch", batch, "at least 1", "set it");
  if (seq_len < 1 || seq_len > 1048576) {
    return Outside("seq_len", seq_len, "from 1 to 1048576", "take a length in this range");
  }
  if (Problem problem = CheckHeads(*this)) return problem;
  if (Problem problem = CheckWidths(*this)) return problem;
  if (Problem problem = CheckBlocks(*this)) return problem;
  // Compare with a quotient: batch · seq_len · n_heads may not fit into 64 bits.
  const int64_t rows = std::numeric_limits<int32_t>::max() / n_heads;
  if (int64_t{batch} * seq_len > rows) {
    return Outside(
        "batch", batch,
        absl::StrFormat("batch · seq_len · n_heads at most 2147483647, here %d · %d · %d", batch,
                        seq_len, n_heads),
        "take a smaller batch");
  }
  return std::nullopt;
}

std::optional<ShapeProblem> NsaShape::FindProblemOnCuda() const {
  constexpr int32_t kMaxSelBlocks = 16384, kMaxOverlap = 8;
  if (Problem problem = FindProblem()) return problem;
  if (sel_blocks() > kMaxSelBlocks) {
    return Outside("l_sel", l_sel,
                   absl::StrFormat("at most %d selection blocks on a GPU, seq_len / l_sel is %d",
                                   kMaxSelBlocks, sel_blocks()),
                   "take larger blocks");
  }
  if (l > kMaxOverlap * l_sel) {
    return Outside("l", l,
                   absl::StrFormat("at most %d times l_sel = %d on a GPU", kMaxOverlap, l_sel),
                   "take larger selection or smaller compression blocks");
  }
  return std::nullopt;
}

absl::Status NsaShape::Validate() const {
  const Problem problem = FindProblem();
  return problem ? problem->ToStatus() : absl::OkStatus();
}

absl::Status NsaShape::ValidateOnCuda() const {
  const Problem problem = FindProblemOnCuda();
  return problem ? problem->ToStatus() : absl::OkStatus();
}

std::string NsaShape::ToString() const {
  return absl::StrFormat("B=%d S=%d H=%d G=%d dk=%d dv=%d l=%d d=%d l'=%d n=%d w=%d", batch,
                         seq_len, n_heads, n_kv_groups, d_k, d_v, l, d, l_sel, n_sel, window);
}

}  // namespace nsa
