// How the optimizer's work and state are divided over the ranks of a job: each rank has one run of
// neighbouring elements of the flat arena, in rank order.
//
// With runtime.shard: optimizer (ZeRO-1: Rajbhandari et al. 2020, arXiv 1910.02054) a rank keeps
// moments and fp32 weights of its share only, with `gradients` (ZeRO-2) also gradients. With `none`
// every rank has everything, but gradients and their norm are summed along the same cuts, so that
// all ways give the same bits.
//
// A run instead of a set of tensors, because one part of a buffer is summed, sent and written to a
// checkpoint at once. With AdamW shares differ by 16 elements at most. Muon needs whole matrices:
// a cut that would fall inside one of them moves to its nearer end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nsa/v1/job.pb.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

class ParameterLayout;

class Shares {
 public:
  // One share: everything.
  explicit Shares(int64_t size) : cuts_{0, size} {}

  // The shares of `ranks` ranks, from 1. Cuts are multiples of 16 elements. A share may be empty
  // where there are more ranks than the layout can be divided among. Pure.
  Shares(const ParameterLayout& layout, const v1::TrainSpec& train, int32_t ranks);

  int32_t ranks() const { return static_cast<int32_t>(cuts_.size()) - 1; }
  Slice of(int32_t rank) const { return {cuts_[rank], cuts_[rank + 1]}; }

  // Rank r has the elements from cuts()[r] to cuts()[r + 1].
  std::span<const int64_t> cuts() const { return cuts_; }

  // The same of the elements of `part`, counted from its begin: rank r has those of its share.
  std::vector<int64_t> CutsOf(const Slice& part) const;

 private:
  std::vector<int64_t> cuts_;
};

}  // namespace nsa::train
