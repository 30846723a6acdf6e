#include "worker/train/step/out_dir_ranks.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

// The same on all ranks, and new at every start: a file that an earlier start has left is not
// mistaken for one of this start.
absl::StatusOr<uint64_t> AgreeOnNumber(Comm* comm) {
  uint64_t number = 0;
  if (comm->rank() == 0 && getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    return absl::ErrnoToStatus(errno, "getrandom");
  }
  NSA_RETURN_IF_ERROR(
      comm->Broadcast("out_dir", 0, std::as_writable_bytes(std::span<uint64_t>(&number, 1))));
  return number;
}

std::string MarkOf(uint64_t number, int rank) {
  return absl::StrFormat(".ranks-%016x-%05d", number, rank);
}

}  // namespace

absl::StatusOr<OutDirRanks> FindOutDirRanks(const v1::WorkerLaunch& launch, const Folder& out_dir,
                                            Comm* comm) {
  if (launch.rank_address().empty()) {
    return OutDirRanks{.index = launch.rank(), .count = launch.world_size()};
  }
  NSA_ASSIGN_OR_RETURN(const uint64_t number, AgreeOnNumber(comm));
  const std::string own = MarkOf(number, launch.rank());
  NSA_RETURN_IF_ERROR(Annotate(out_dir.WriteAtomically(own, ""), "train.out_dir"));
  NSA_RETURN_IF_ERROR(comm->Barrier("out_dir"));
  OutDirRanks ranks{.index = 0, .count = 0};
  for (int rank = 0; rank < launch.world_size(); ++rank) {
    if (!out_dir.Has(MarkOf(number, rank))) continue;
    ++ranks.count;
    if (rank < launch.rank()) ++ranks.index;
  }
  // Also a barrier: no file is removed before every rank has looked.
  double everybody = ranks.count == launch.world_size() ? 1 : 0;
  NSA_RETURN_IF_ERROR(comm->AllReduce("out_dir", Reduce::kMin, std::span<double>(&everybody, 1)));
  NSA_RETURN_IF_ERROR(Annotate(out_dir.RemoveAll(own), "train.out_dir"));
  ranks.everybody = everybody == 1;
  return ranks;
}

}  // namespace nsa::train
