// samples.jsonl: one line a text, no step twice.
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/worker/train/telemetry/reporting.h"

namespace nsa::train {
namespace {

void WriteSamples(ReporterOptions options, int64_t resumed_step, int64_t last) {
  options.resumed_step = resumed_step;
  auto reporter = Reporter::Open(options);
  ASSERT_OK(reporter);
  for (int64_t step = resumed_step + 10; step <= last; step += 10) {
    v1::SampleRecord sample;
    sample.set_step(step);
    sample.set_prompt("a \"step\":99 of\n");
    sample.set_text(step == 20 ? "" : "b");
    if (step == 20) sample.set_error("no memory");
    sample.set_tokens(3);
    (*reporter)->Sample(sample);
  }
}

TEST(SamplesFile, AResumedRunDropsTheRowsOfLaterSteps) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.spec.mutable_sample()->add_prompts("a");
  WriteSamples(options, 0, 30);
  WriteSamples(options, 10, 20);
  const auto lines = Lines(dir / "out/samples.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  const auto first = nlohmann::json::parse(lines[0]), second = nlohmann::json::parse(lines[1]);
  EXPECT_EQ(first["step"], 10);
  EXPECT_EQ(first["prompt"], "a \"step\":99 of\n");
  EXPECT_EQ(first["text"], "b");
  EXPECT_EQ(first["tokens"], 3);
  EXPECT_GT(first["unix_seconds"], 1e9);
  EXPECT_FALSE(first.contains("error"));
  EXPECT_EQ(second["step"], 20);
  EXPECT_EQ(second["error"], "no memory");
}

TEST(SamplesFile, IsThereOnlyForAJobWithPromptsOnRankZero) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  WriteSamples(options, 0, 10);
  EXPECT_FALSE(std::filesystem::exists(dir / "out/samples.jsonl"));
  options.spec.mutable_sample()->add_prompts("a");
  options.rank = 1;
  WriteSamples(options, 0, 10);
  EXPECT_FALSE(std::filesystem::exists(dir / "out/samples.jsonl"));
}

}  // namespace
}  // namespace nsa::train
