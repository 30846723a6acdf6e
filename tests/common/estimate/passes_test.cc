#include "common/estimate/passes.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/estimate/memory/memory.h"
#include "common/job/load.h"

namespace nsa {
namespace {

v1::JobSpec Job(int32_t batch, int32_t micro_batches, int32_t seq_len = 2048) {
  v1::JobSpec spec;
  spec.mutable_train()->set_batch_size(batch);
  spec.mutable_train()->set_accumulate_grad_batches(micro_batches);
  spec.mutable_train()->set_seq_len(seq_len);
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  ApplyDefaults(&spec);
  return spec;
}

int32_t MergeOf(v1::JobSpec spec) {
  ResolveDevice(/*has_gpu=*/true, &spec);
  return spec.runtime().merge_micro_batches();
}

TEST(DefaultMerge, FillsAPassOf16384Tokens) {
  EXPECT_EQ(MergeOf(Job(2, 2)), 2);
  EXPECT_EQ(MergeOf(Job(2, 16)), 4);
  EXPECT_EQ(MergeOf(Job(8, 16)), 1);
  EXPECT_EQ(MergeOf(Job(2, 1)), 1);
  EXPECT_EQ(MergeOf(Job(1, 4, 65536)), 1);
}

TEST(DefaultMerge, IsADivisor) {
  EXPECT_EQ(MergeOf(Job(2, 3)), 3);
  EXPECT_EQ(MergeOf(Job(2, 5)), 1);
  EXPECT_EQ(MergeOf(Job(2, 6)), 3);
}

TEST(DefaultMerge, CountsTheTokensOfOneRank) {
  v1::JobSpec spec = Job(4, 8);
  EXPECT_EQ(MergeOf(spec), 2);
  spec.mutable_resources()->set_gpus(2);
  EXPECT_EQ(MergeOf(spec), 4);
}

TEST(DefaultMerge, AddsAtMost6GiB) {
  v1::JobSpec spec = Job(1, 8);
  spec.mutable_model()->set_dim(2048);
  spec.mutable_model()->set_n_layers(24);
  const int32_t merged = MergeOf(spec);
  EXPECT_EQ(merged, 2);
  const int64_t alone = TotalBytes(MemoryEstimate(spec));
  spec.mutable_runtime()->set_merge_micro_batches(merged);
  const int64_t more = TotalBytes(MemoryEstimate(spec)) - alone;
  EXPECT_GT(more, int64_t{2} << 30);
  EXPECT_LT(more, int64_t{6} << 30);
}

TEST(DefaultMerge, LeavesWhatTheJobSays) {
  v1::JobSpec spec = Job(2, 2);
  spec.mutable_runtime()->set_merge_micro_batches(1);
  EXPECT_EQ(MergeOf(spec), 1);
}

TEST(DefaultMerge, IsNotSetOnTheCpu) {
  v1::JobSpec spec = Job(2, 2);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  ResolveDevice(/*has_gpu=*/true, &spec);
  EXPECT_FALSE(spec.runtime().has_merge_micro_batches());
}

TEST(DefaultMerge, TakesSpecsThatNobodyHasChecked) {
  const int32_t largest = std::numeric_limits<int32_t>::max();
  for (const int32_t value : {0, -1, largest, std::numeric_limits<int32_t>::min()}) {
    v1::JobSpec spec = Job(value, value, value);
    spec.mutable_model()->set_dim(value);
    spec.mutable_model()->set_n_layers(value);
    spec.mutable_resources()->set_gpus(value);
    EXPECT_EQ(DefaultMerge(spec), 1) << value;
    spec.mutable_runtime()->set_merge_micro_batches(3);
    spec.mutable_train()->set_accumulate_grad_batches(3);
    EXPECT_EQ(PassesOf(spec, 1).merged, 3) << value;
    spec = Job(1, largest, 1);
    spec.mutable_model()->set_dim(value);
    EXPECT_GE(DefaultMerge(spec), 1) << value;
  }
}

TEST(PassesOf, AStepHasAllSequencesOfARank) {
  v1::JobSpec spec = Job(4, 8);
  spec.mutable_runtime()->set_merge_micro_batches(4);
  const Passes passes = PassesOf(spec, 2);
  EXPECT_EQ(passes.count, 2);
  EXPECT_EQ(passes.merged, 4);
  EXPECT_EQ(passes.sequences, 8);
}

TEST(PassesOf, TheCpuMergesNothing) {
  v1::JobSpec spec = Job(4, 8);
  spec.mutable_runtime()->set_merge_micro_batches(4);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  const Passes passes = PassesOf(spec, 1);
  EXPECT_EQ(passes.count, 8);
  EXPECT_EQ(passes.sequences, 4);
}

TEST(PassesOf, WhatDoesNotDivideIsNotMerged) {
  v1::JobSpec spec = Job(4, 8);
  spec.mutable_runtime()->set_merge_micro_batches(3);
  EXPECT_EQ(PassesOf(spec, 1).count, 8);
}

}  // namespace
}  // namespace nsa
