#include "worker/bench/decode.h"

#include <fstream>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/bench/dense.h"
#include "worker/train/gpu/machine.h"

namespace nsa::bench {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<DecodeTimes> Time(const v1::JobSpec& spec, const DecodeTiming& timing) {
  train::SetThreads(1, 1);
  const train::ParameterLayout layout(spec);
  train::Arena parameters(&layout);
  train::Initialize(1, &parameters);
  return TimeDecode(Exec(), spec, parameters, timing);
}

TEST(Decode, TimesThePromptAndTheStepsBehindIt) {
  const auto times = Time(train::TinyJob(), {.context = 100, .steps = 20, .slots = 3});
  ASSERT_OK(times);
  EXPECT_GT(times->prompt_seconds, 0);
  EXPECT_GT(times->median_seconds, 0);
  EXPECT_GE(times->p95_seconds, times->median_seconds);
  EXPECT_GT(times->bytes, 0);
}

TEST(Decode, CountsTheKeysOfTheRule) {
  // l = 8, d = 4, l' = 8, n = 3, w = 6: the token with number s reads (s − 8) / 4 + 1 compressed
  // keys, 16 + (s − 1) mod 8 + 1 selected ones, and 6 in its window.
  double expected = 0;
  for (int s = 81; s <= 100; ++s) expected += (s - 8) / 4 + 1 + 16 + (s - 1) % 8 + 1 + 6;
  EXPECT_DOUBLE_EQ(Time(train::TinyJob(), {.context = 100, .steps = 20})->keys, expected / 20);
  EXPECT_DOUBLE_EQ(Time(Dense(train::TinyJob(), 100), {.context = 100, .steps = 1})->keys, 100);
}

TEST(Decode, RefusesStepsThatLeaveNoPrompt) {
  EXPECT_THAT(
      Time(train::TinyJob(), {.context = 20, .steps = 20}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("decode: context 20 with 20 steps")));
}

TEST(Decode, PrintsARowForEachContextAndNumberOfSlotsAndOneForDenseAttention) {
  const TempDir dir;
  std::ofstream(dir / "job.yaml")
      << "name: tiny\n"
         "model: {dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}\n"
         "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}\n"
         "data: {source: text, path: none.txt, tokenizer: byte}\n"
         "train: {steps: 2, seq_len: 32, batch_size: 2}\n";
  testing::internal::CaptureStdout();
  const absl::Status status = RunDecode({.job = dir / "job.yaml",
                                         .device = "cpu",
                                         .contexts = {50, 90},
                                         .slots = {1, 2},
                                         .steps = 10,
                                         .vs_dense = true});
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_OK(status);
  EXPECT_THAT(table,
              AllOf(StartsWith("tiny: "), HasSubstr("CPU, fp32; steps of one token: 10\n"),
                    ContainsRegex("\n      50  nsa  +1 "), ContainsRegex("\n      50  nsa  +2 "),
                    ContainsRegex("\n      90  nsa  +1 "),
                    ContainsRegex("\n      90  dense  +2 .* 86 .* times as long\n")));
}

}  // namespace
}  // namespace nsa::bench
