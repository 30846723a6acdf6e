// nsactl profile against a fake coordinator.
#include <zlib.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"
#include "tests/worker/train/profile/read_trace.h"

namespace nsa::client {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string Gzip(const std::string& text, const std::filesystem::path& scratch) {
  gzFile file = gzopen(scratch.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::ifstream in(scratch, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ProfileTest : public CommandsTest {
 protected:
  // What a rank sends: two steps of 10 ms; a forward takes 6 ms of each.
  std::string TraceOf(int rank, int64_t base, const std::string& more = "") const {
    std::string text =
        absl::StrCat(R"({"displayTimeUnit":"ms","otherData":{"rank":)", rank,
                     R"(,"first_step":121,"last_step":122,"asked_steps":2,"base_unix_nanos":")",
                     base, R"(","dropped_events":0,"notes":[]},"traceEvents":[)", "\n",
                     R"({"ph":"M","name":"process_name","pid":9,"tid":0,"args":{"name":"?"}})");
    for (int step = 0; step < 2; ++step) {
      absl::StrAppend(&text, ",\n", R"({"ph":"X","name":"step )", 121 + step,
                      R"(","cat":"step","pid":9,"tid":1,"ts":)", 10000 * step,
                      R"(.5,"dur":10000,"args":{}})", ",\n",
                      R"({"ph":"X","name":"forward","cat":"phase","pid":9,"tid":1,"ts":)",
                      10000 * step + 1, R"(,"dur":6000,"args":{}})");
    }
    return absl::StrCat(text, more, "\n]}\n");
  }
  void Give(int rank, const std::string& data, size_t part = 100) {
    for (size_t at = 0; at < data.size(); at += part) {
      v1::ProfileJobResponse& response = state().profile.emplace_back();
      response.set_rank(rank);
      response.set_node(absl::StrCat("node-", rank));
      response.set_size(static_cast<int64_t>(data.size()));
      response.set_offset(static_cast<int64_t>(at));
      response.set_data(data.substr(at, part));
    }
  }
  void GiveTrace(int rank, int64_t base, const std::string& more = "") {
    Give(rank, Gzip(TraceOf(rank, base, more), dir_ / "scratch"));
  }

  const std::string file_ = (dir_ / "out.json.gz").string();
};

TEST_F(ProfileTest, WritesOneFileOfAllRanksAndShowsWhatTookTheTime) {
  GiveTrace(0, 1'700'000'000'000'000'000);
  GiveTrace(1, 1'700'000'000'002'000'000);
  const Ran ran = Run({"profile", "demo", "--steps", "2", "-o", file_});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(service().Requests("ProfileJob"),
              ElementsAre(AllOf(HasSubstr("jdemo1234567"), HasSubstr("steps: 2"))));
  EXPECT_THAT(ran.out, AllOf(HasSubstr("steps 121 to 122 of 2 ranks in " + file_),
                             HasSubstr("https://ui.perfetto.dev"), HasSubstr("forward"),
                             HasSubstr("6.000"), HasSubstr("60.0 %")));
  const json trace = ReadTrace(file_);
  EXPECT_EQ(trace["otherData"]["job"], "demo");
  std::vector<std::string> names;
  std::vector<double> starts;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "M")
      names.push_back(
          absl::StrCat(event["pid"].get<int>(), event["args"]["name"].get<std::string>()));
    if (event["name"] == "step 121") starts.push_back(event["ts"]);
    EXPECT_TRUE(event["pid"] == 0 || event["pid"] == 1);
  }
  EXPECT_THAT(names, ElementsAre("0rank 0 (node-0)", "1rank 1 (node-1)"));
  EXPECT_THAT(starts, ElementsAre(0.5, 2000.5)) << "one clock: rank 1 began 2 ms later";
}

TEST_F(ProfileTest, WritesPlainJsonIntoAFileThatIsNotNamedGz) {
  std::string more;
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&more, ",\n",
                    R"({"ph":"X","name":"matmul","cat":"kernel","pid":0,"tid":1,"ts":)", i,
                    R"(,"dur":5,"args":{}})");
  }
  GiveTrace(0, 1, more);
  const std::string plain = (dir_ / "trace.json").string();
  ASSERT_EQ(Run({"profile", "demo", "-o", plain}).code, ExitCode::kOk);
  ASSERT_EQ(Run({"profile", "demo", "-o", file_}).code, ExitCode::kOk);
  std::ifstream in(plain, std::ios::binary);
  const json trace = json::parse(in, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(trace.is_object());
  EXPECT_EQ(trace, ReadTrace(file_));
  std::ifstream compressed(file_, std::ios::binary);
  EXPECT_EQ(compressed.get(), 0x1f);
}

TEST_F(ProfileTest, NeverOverwritesAFileUnlessAsked) {
  std::ofstream(file_) << "mine";
  const Ran refused = Run({"profile", "demo", "-o", file_});
  EXPECT_EQ(refused.code, ExitCode::kPrecondition);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("exists"), HasSubstr("--force")));
  EXPECT_THAT(service().Requests("ProfileJob"), SizeIs(0)) << "nothing is recorded for nothing";
  GiveTrace(0, 1);
  EXPECT_EQ(Run({"profile", "demo", "-o", file_, "--force"}).code, ExitCode::kOk);
  EXPECT_EQ(ReadTrace(file_)["otherData"]["ranks"], 1);
}

TEST_F(ProfileTest, NamesTheFileByJobAndSteps) {
  GiveTrace(0, 1);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  const Ran ran = Run({"profile", "demo", "--output", "name"});
  const Ran again = Run({"profile", "demo"});
  std::filesystem::current_path(before);
  EXPECT_EQ(ran.out, "demo-steps-121-122.json.gz\n");
  EXPECT_EQ(again.code, ExitCode::kPrecondition);
}

TEST_F(ProfileTest, ShowsKernelsOfTheGpuInsteadOfThoseOfTheHost) {
  GiveTrace(0, 1,
            ",\n"
            R"({"ph":"X","name":"matmul","cat":"kernel","pid":0,"tid":1,"ts":1,"dur":5,"args":{}})"
            ",\n"
            R"({"ph":"X","name":"nsa::Gate","cat":"gpu_kernel","pid":0,"tid":107,"ts":1,"dur":5,)"
            R"("args":{"grid":[1,1,1]}})");
  const Ran ran = Run({"profile", "demo", "-o", file_});
  EXPECT_THAT(ran.out, AllOf(HasSubstr("nsa::Gate"), Not(HasSubstr("matmul"))));
  const json document =
      json::parse(Run({"profile", "demo", "-o", file_, "--force", "--output", "json"}).out);
  EXPECT_EQ(document["top"][0]["kind"], "phase");
  EXPECT_EQ(document["top"][0]["share_of_step"], 0.6);
  EXPECT_EQ(document["top"][1]["name"], "nsa::Gate");
  EXPECT_EQ(document["ranks"][0]["node"], "node-0");
}

TEST_F(ProfileTest, WritesTheRanksThatAnsweredAndFailsForTheOthers) {
  GiveTrace(0, 1);
  v1::ProfileJobResponse& lost = state().profile.emplace_back();
  lost.set_rank(1);
  lost.set_node("b");
  lost.set_error("rank 1: it ended before its trace was complete");
  const Ran ran = Run({"profile", "demo", "-o", file_});
  EXPECT_NE(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.err, HasSubstr("1 of 2 ranks gave no trace: rank 1"));
  EXPECT_EQ(ReadTrace(file_)["otherData"]["ranks"], 1);
}

TEST_F(ProfileTest, WithoutAnyTraceThereIsNoFile) {
  v1::ProfileJobResponse& lost = state().profile.emplace_back();
  lost.set_error("rank 0: agent a did not answer for 30 s");
  EXPECT_THAT(Run({"profile", "demo", "-o", file_}).err,
              HasSubstr("no rank gave a trace: rank 0: agent a"));
  state().profile.clear();
  const std::string cut = TraceOf(0, 1);
  for (const std::string& bad : {std::string("no gzip at all"), Gzip("{}", dir_ / "s"),
                                 Gzip(cut.substr(0, cut.size() - 4), dir_ / "s"),
                                 Gzip(TraceOf(0, 1, ",\nnot json"), dir_ / "s"),
                                 Gzip(TraceOf(0, 1), dir_ / "s").substr(0, 150)}) {
    state().profile.clear();
    Give(0, bad);
    const Ran ran = Run({"profile", "demo", "-o", file_});
    EXPECT_NE(ran.code, ExitCode::kOk);
    EXPECT_THAT(ran.err, HasSubstr("rank 0: what came is no whole trace"));
    EXPECT_FALSE(std::filesystem::exists(file_));
  }
}

TEST_F(ProfileTest, WhatIsNestedTooDeeplyIsLeftOut) {
  const std::string deep =
      absl::StrCat(R"({"ph":"X","name":"deep","cat":"phase","ts":1,"dur":1,"args":)",
                   std::string(20'000, '['), std::string(20'000, ']'), "}");
  GiveTrace(0, 1, ",\n" + deep);
  ASSERT_EQ(Run({"profile", "demo", "-o", file_}).code, ExitCode::kOk);
  const json trace = ReadTrace(file_);
  EXPECT_EQ(trace["traceEvents"].back()["name"], "deep");
  EXPECT_LT(trace["traceEvents"].back().dump().size(), 200u);
}

TEST_F(ProfileTest, OnlyAJobThatRunsIsSaidToTrain) {
  GiveTrace(0, 1);
  EXPECT_THAT(Run({"profile", "demo", "-o", file_}).err, HasSubstr("training goes on"));
  state().jobs[0].set_state(v1::Job::STATE_SUCCEEDED);
  EXPECT_THAT(Run({"profile", "demo", "-o", file_, "--force"}).err,
              Not(HasSubstr("training goes on")));
}

TEST_F(ProfileTest, AStreamThatBreaksLeavesNoFile) {
  GiveTrace(0, 1);
  state().profile.pop_back();
  EXPECT_THAT(Run({"profile", "demo", "-o", file_}).err,
              HasSubstr("rank 0: its trace is not whole"));
  EXPECT_FALSE(std::filesystem::exists(file_));
  state().profile.front().set_offset(5);
  EXPECT_THAT(Run({"profile", "demo", "-o", file_}).err, HasSubstr("a part at 5"));
}

TEST_F(ProfileTest, StepsOutOfRangeAreNamed) {
  for (const char* steps : {"0", "101", "-1", "x"}) {
    const Ran ran = Run({"profile", "demo", "--steps", steps});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_THAT(ran.err, HasSubstr("--steps"));
  }
}

TEST_F(ProfileTest, PassesTheCoordinatorsRefusalOn) {
  state().failures["ProfileJob"] = {
      grpc::Status(grpc::StatusCode::ALREADY_EXISTS,
                   "profile: job jdemo1234567 is being profiled (at most one at a time)")};
  const Ran ran = Run({"profile", "demo", "-o", file_});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition);
  EXPECT_THAT(ran.err, HasSubstr("one at a time"));
}

TEST_F(ProfileTest, NoSteeringTextOfATraceReachesTheTerminal) {
  GiveTrace(0, 1,
            ",\n"
            R"({"ph":"X","name":"evil\u001b[31m","cat":"phase","pid":0,"tid":1,"ts":1,"dur":99999,)"
            R"("args":{}})");
  for (const char* format : {"table", "json", "yaml"}) {
    const Ran ran = Run({"profile", "demo", "-o", file_, "--force", "--output", format});
    EXPECT_THAT(ran.out, AllOf(HasSubstr("evil"), Not(HasSubstr("\x1b")))) << format;
  }
}

}  // namespace
}  // namespace nsa::client
