// nsactl samples, against a fake coordinator.
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class SamplesTest : public CommandsTest {
 protected:
  v1::SampleRecord& AddSample(int64_t position, int64_t step, const std::string& text) {
    v1::SampleRecord& sample = *AddRecord(position).mutable_record()->mutable_sample();
    sample.set_step(step);
    sample.set_prompt("To be");
    sample.set_text(text);
    sample.set_tokens(64);
    sample.set_seconds(0.25);
    return sample;
  }
};

TEST_F(SamplesTest, PrintsStepPromptAndTextAndNoOtherRecord) {
  AddStep(1);
  AddSample(2, 100, " or not\nto be");
  AddStep(3);
  const Ran ran = Run({"samples", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out, "step 100, \"To be\" (64 tokens, 0.2 s)\n or not\nto be\n\n");
}

TEST_F(SamplesTest, TailAndJson) {
  for (int i = 1; i <= 3; ++i) AddSample(i, 100 * i, "text " + std::to_string(i));
  EXPECT_THAT(Run({"samples", "demo", "--tail", "2"}).out, StartsWith("step 200,"));
  const auto document = nlohmann::json::parse(Run({"samples", "demo", "-o", "json"}).out);
  ASSERT_EQ(document["samples"].size(), 3u);
  EXPECT_EQ(document["samples"][2]["record"]["sample"]["text"], "text 3");
}

TEST_F(SamplesTest, CleansTextsForTheTerminalAndShowsErrors) {
  AddSample(1, 100, "a\x1b[31m");
  v1::SampleRecord& failed = AddSample(2, 200, "");
  failed.set_error("decode: no memory");
  const std::string out = Run({"samples", "demo"}).out;
  EXPECT_THAT(out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(out, HasSubstr("a\\x1b[31m\n"));
  EXPECT_THAT(out, HasSubstr("no text: decode: no memory\n"));
}

TEST_F(SamplesTest, ACarriageReturnEndsALineAndStaysInJson) {
  AddSample(1, 100, "one\r\ntwo\rthree");
  EXPECT_THAT(Run({"samples", "demo"}).out, HasSubstr(")\none\ntwo\nthree\n\n"));
  const auto document = nlohmann::json::parse(Run({"samples", "demo", "-o", "json"}).out);
  EXPECT_EQ(document["samples"][0]["record"]["sample"]["text"], "one\r\ntwo\rthree");
}

TEST_F(SamplesTest, SaysWhyThereAreNone) {
  EXPECT_THAT(Run({"samples", "demo"}).err, HasSubstr("the job has no sample.prompts"));
  state().jobs[0].mutable_spec()->mutable_sample()->add_prompts("");
  EXPECT_THAT(Run({"samples", "demo"}).err, HasSubstr("no samples yet"));
  EXPECT_EQ(Run({"samples", "no-such"}).code, ExitCode::kNotFound);
}

}  // namespace
}  // namespace nsa::client
