#include "worker/train/data/mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/data/random.h"

namespace nsa::train {
namespace {

constexpr uint64_t kMixKey = 0x6d6978;  // apart from the keys of other uses of the seed

// Whole shares of the period: rounded down, and the largest remainders up.
std::vector<int64_t> SharesOf(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> shares;
  std::vector<std::pair<double, size_t>> remainders;
  int64_t left = MixSchedule::kPeriod;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = MixSchedule::kPeriod * (weights[i] / sum);
    shares.push_back(static_cast<int64_t>(std::floor(exact)));
    remainders.emplace_back(-(exact - std::floor(exact)), i);
    left -= shares.back();
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) {
    ++shares[remainders[i].second];
  }
  return shares;
}

}  // namespace

MixSchedule::MixSchedule(std::span<const double> weights) : shares_(SharesOf(weights)) {
  TakeTurns();
}

// A source may take its turn g (from 0) at sequence q if that does not put it above its quota
// rounded up. Of these the one whose quota runs out first does; so none falls below its quota
// rounded down.
void MixSchedule::TakeTurns() {
  std::vector<int16_t> given(shares_.size(), 0);
  for (int64_t q = 0; q < kPeriod; ++q) {
    before_.insert(before_.end(), given.begin(), given.end());
    size_t next = shares_.size();
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (given[i] * kPeriod >= shares_[i] * (q + 1)) continue;
      if (next == shares_.size() || (given[i] + 1) * shares_[next] < (given[next] + 1) * shares_[i])
        next = i;
    }
    turns_.push_back(static_cast<int32_t>(next));
    ++given[next];
  }
  before_.insert(before_.end(), given.begin(), given.end());
}

MixSchedule::Turn MixSchedule::At(int64_t sequence) const {
  const int32_t source = turns_[static_cast<size_t>(sequence % kPeriod)];
  return {source, CountBefore(source, sequence)};
}

int64_t MixSchedule::CountBefore(int32_t source, int64_t sequences) const {
  const auto at = static_cast<size_t>(sequences % kPeriod) * shares_.size();
  return sequences / kPeriod * share(source) + before_[at + static_cast<size_t>(source)];
}

MixedRows::MixedRows(Options options, MixSchedule schedule)
    : options_(std::move(options)), schedule_(std::move(schedule)) {
  for (size_t i = 0; i < options_.sources.size(); ++i) {
    seeds_.push_back(static_cast<int64_t>(Mix(static_cast<uint64_t>(options_.seed), kMixKey, i)));
    orders_.emplace_back(seeds_.back(), options_.sources[i]->rows());
  }
}

absl::Status MixedRows::Read(int64_t row, std::span<int32_t> tokens) {
  const MixSchedule::Turn turn = schedule_.At(row);
  const auto source = static_cast<size_t>(turn.source);
  const int64_t rows = orders_[source].rows();
  const int64_t epoch = turn.index / rows;
  const int64_t at = turn.index % rows;
  const int64_t index = InOrder(source) ? at : orders_[source].Row(epoch, at);
  const int64_t shift = InOrder(source) ? 0 : ShiftOfEpoch(seeds_[source], epoch, options_.seq_len);
  return Annotate(options_.sources[source]->ReadShifted(index, shift, tokens),
                  absl::StrCat("source ", source, ", row ", index));
}

int64_t MixedRows::counted_rows() const {
  int64_t sum = 0;
  for (const auto& source : options_.sources) sum += source->counted_rows();
  return sum;
}

absl::Status MixedRows::PassTo(int64_t row) {
  for (int32_t i = 0; i < schedule_.sources(); ++i) {
    NSA_RETURN_IF_ERROR(
        Annotate(SourceAt(i).PassTo(schedule_.CountBefore(i, row)), absl::StrCat("source ", i)));
  }
  return absl::OkStatus();
}

std::vector<SourceMark> MixedRows::Marks(int64_t row) const {
  std::vector<SourceMark> marks;
  for (int32_t i = 0; i < schedule_.sources(); ++i) {
    std::vector<SourceMark> own = SourceAt(i).Marks(schedule_.CountBefore(i, row));
    if (own.empty()) own.push_back({.epoch = EpochAfter(i, row)});
    if (own.front().window) own.front().window->set_source(i);
    marks.push_back(std::move(own.front()));
  }
  return marks;
}

absl::Status MixedRows::Seek(int64_t row, std::span<const v1::StreamPosition> windows) {
  const size_t each = windows.empty() ? 0 : 1;
  for (int32_t i = 0; i < schedule_.sources(); ++i) {
    NSA_RETURN_IF_ERROR(
        Annotate(SourceAt(i).Seek(schedule_.CountBefore(i, row),
                                  windows.subspan(each * static_cast<size_t>(i), each)),
                 absl::StrCat("source ", i)));
  }
  return absl::OkStatus();
}

int64_t MixedRows::progress() const {
  int64_t sum = 0;
  for (const auto& source : options_.sources) sum += source->progress();
  return sum;
}

void MixedRows::Cancel() {
  for (const auto& source : options_.sources) source->Cancel();
}

int64_t MixedRows::EpochAfter(int32_t source, int64_t sequences) const {
  const int64_t taken = schedule_.CountBefore(source, sequences);
  return std::max<int64_t>(0, taken - 1) / orders_[static_cast<size_t>(source)].rows();
}

}  // namespace nsa::train
