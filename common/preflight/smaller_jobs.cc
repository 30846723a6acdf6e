#include "common/preflight/smaller_jobs.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"

namespace nsa {
namespace {

// A change of one setting that makes a job smaller.
struct Change {
  std::string setting;  // "batch_size"
  std::string value;    // "4 with accumulate_grad_batches: 2"
  v1::JobSpec spec;
};

std::vector<Change> SmallerJobs(const PreflightFacts& facts) {
  std::vector<Change> changes;
  const v1::JobSpec& spec = facts.spec;
  const auto add = [&](const char* setting, std::string value,
                       const std::function<void(v1::JobSpec*)>& edit) {
    changes.push_back({setting, std::move(value), spec});
    edit(&changes.back().spec);
  };
  const bool keeps = !spec.runtime().gradient_checkpointing();
  const auto recompute = [](v1::JobSpec* s) {
    s->mutable_runtime()->set_gradient_checkpointing(true);
  };
  const auto ranks = static_cast<int32_t>(facts.ranks());
  for (const bool recomputes : {false, true}) {
    if (ranks < 2 || (recomputes && !keeps)) break;
    for (const v1::Shard shard : LevelsOf(spec)) {
      if (shard <= ShardOf(spec, ranks)) continue;
      add("runtime.shard",
          absl::StrFormat("%s%s", ShardName(shard),
                          recomputes ? " with gradient_checkpointing: true" : ""),
          [&](v1::JobSpec* s) {
            SetShard(shard, s);
            if (recomputes) recompute(s);
          });
    }
  }
  if (PassesOf(spec).merged > 1) {
    add("merge_micro_batches", "1",
        [](v1::JobSpec* s) { s->mutable_runtime()->set_merge_micro_batches(1); });
  }
  if (keeps) add("gradient_checkpointing", "true", recompute);
  if (facts.cuda() && spec.runtime().precision() == v1::PRECISION_FP32) {
    add("precision", "bf16",
        [](v1::JobSpec* s) { s->mutable_runtime()->set_precision(v1::PRECISION_BF16); });
  }
  const int batch = spec.train().batch_size();
  const int accumulate = spec.train().accumulate_grad_batches();
  const int64_t groups = std::max<int64_t>(1, facts.ranks() / ContextOf(spec));
  for (int factor = 2; factor <= batch; ++factor) {
    if (batch % factor != 0 || (batch / factor) % groups != 0) continue;
    add("batch_size",
        absl::StrFormat("%d with accumulate_grad_batches: %d", batch / factor, accumulate * factor),
        [&](v1::JobSpec* s) {
          s->mutable_train()->set_batch_size(batch / factor);
          s->mutable_runtime()->set_merge_micro_batches(1);
        });
  }
  for (int seq_len = spec.train().seq_len() / 2; seq_len >= 256; seq_len /= 2) {
    add("seq_len", absl::StrCat(seq_len),
        [&](v1::JobSpec* s) { s->mutable_train()->set_seq_len(seq_len); });
  }
  return changes;
}

}  // namespace

std::string WhatWouldFit(const PreflightFacts& facts, int64_t memory) {
  std::vector<std::string> fitting;
  std::string last_setting;
  for (const Change& change : SmallerJobs(facts)) {
    if (change.setting == last_setting) continue;
    const Recompute recompute = RecomputeOf(change.spec, memory);
    if (TotalBytes(MemoryEstimate(change.spec, recompute)) > memory) continue;
    last_setting = change.setting;
    fitting.push_back(absl::StrCat(change.setting, ": ", change.value));
    if (fitting.size() == 3) break;
  }
  if (fitting.empty()) return "use a smaller model or more memory; no single setting is enough";
  return absl::StrCat("it fits with ", absl::StrJoin(fitting, ", or "));
}

}  // namespace nsa
