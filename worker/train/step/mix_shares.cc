#include "worker/train/step/mix_shares.h"

#include "common/base/status.h"
#include "worker/train/comm/stop.h"

namespace nsa::train {

MixShares::MixShares(const v1::DataSpec& data, int32_t context) : context_(context) {
  for (const v1::MixSource& mix : data.mix()) names_.push_back(mix.name());
}

void MixShares::Add(const Batch& batch) {
  if (names_.empty()) return;
  const size_t before = parts_.size();
  parts_.insert(parts_.end(), batch.parts.begin(), batch.parts.end());
  parts_.resize(before + static_cast<size_t>(batch.rows), -1);
}

absl::Status MixShares::Finish(std::span<const double> losses, const DataLoader& data, Comm* comm,
                               v1::StepRecord* record) {
  if (names_.empty()) return absl::OkStatus();
  std::vector<double> mine(2 * names_.size(), 0.0);  // rows and sum of losses of each source
  for (size_t i = 0; i < parts_.size() && i < losses.size(); ++i) {
    if (parts_[i] < 0) continue;
    const size_t at = 2 * static_cast<size_t>(parts_[i]);
    mine[at] += 1;
    mine[at + 1] += losses[i];
  }
  parts_.clear();
  NSA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(comm, "sources", mine));
  for (size_t i = 0; i < names_.size(); ++i) {
    double rows = 0, sum = 0;
    for (size_t rank = 0; rank < all.size(); rank += mine.size()) {
      rows += all[rank + 2 * i];
      sum += all[rank + 2 * i + 1];
    }
    v1::SourceShare* const share = record->add_sources();
    share->set_name(names_[i]);
    share->set_rows(static_cast<int64_t>(rows) / context_);  // every rank of a group counted them
    if (rows > 0) share->set_loss(sum / rows);
    share->set_epoch(data.mix_epoch(static_cast<int32_t>(i)));
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
