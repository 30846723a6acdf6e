// The shares of all ranks in pieces, to bring together what the ranks have apart without holding
// more than one piece of another rank's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/train/model/shares.h"

namespace nsa::train {

// Calls `visit`(int32_t rank, Slice piece) for all pieces of all shares, in ascending order;
// `piece` lies within rank's share and has at most `most` elements. Ends with the first error.
template <class Visit>
absl::Status ForEachPiece(const Shares& shares, int64_t most, Visit visit) {
  for (int32_t rank = 0; rank < shares.ranks(); ++rank) {
    const Slice share = shares.of(rank);
    for (int64_t begin = share.begin; begin < share.end; begin += most) {
      NSA_RETURN_IF_ERROR(visit(rank, Slice{begin, std::min(begin + most, share.end)}));
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
