// nsactl against a coordinator of another version: states, values and fields that it does not know
// are shown as such, and a call that the coordinator does not know is explained.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNewField = 9001;
constexpr int kNewValue = 77;

void AddNewField(google::protobuf::Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(kNewField, "new");
}

class UpgradeTest : public NsactlTest {
 protected:
  UpgradeTest() {
    v1::Job job = DemoJob();
    job.set_state(static_cast<v1::Job::State>(kNewValue));
    job.mutable_stop()->set_mode(static_cast<v1::StopMode>(kNewValue));
    job.mutable_spec()->mutable_runtime()->set_precision(static_cast<v1::Precision>(kNewValue));
    AddNewField(&job);
    AddNewField(job.mutable_spec());
    AddNewField(job.mutable_progress());
    state().jobs = {job};

    v1::JobEvent& event = state().events.emplace_back();
    event.set_sequence(1);
    event.set_job_id(job.id());
    event.set_reason("TELEPORTED");
    event.set_text("to another machine");
    event.set_state(static_cast<v1::Job::State>(kNewValue));
    event.set_severity(static_cast<v1::Severity>(kNewValue));
    AddNewField(&event);

    v1::WatchRecordsResponse& step = state().records.emplace_back();
    step.set_position(1);
    step.mutable_record()->mutable_step()->set_step(375);
    step.mutable_record()->mutable_step()->set_loss(2.5);
    step.mutable_record()->mutable_step()->set_data_source(static_cast<v1::DataSource>(kNewValue));
    AddNewField(step.mutable_record());
    v1::WatchRecordsResponse& kind = state().records.emplace_back();
    kind.set_position(2);
    AddNewField(kind.mutable_record());

    v1::Finding& finding = *state().report.add_findings();
    finding.set_rule("NEW_RULE");
    finding.set_field("train.steps");
    finding.set_severity(static_cast<v1::Severity>(kNewValue));
  }
};

TEST_F(UpgradeTest, EveryReadShowsAStateThatItDoesNotKnow) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"list"}, {"list", "-o", "wide"}, {"describe", "demo"}, {"events", "demo"}}) {
    const Ran ran = Run(command);
    EXPECT_EQ(ran.code, ExitCode::kOk) << command[0] << ": " << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("unknown(77)")) << command[0];
  }
  EXPECT_THAT(Run({"metrics", "demo", "-o", "wide"}).out, HasSubstr("unknown(77)"))
      << "the source of a step's data";
  for (const std::string format : {"json", "yaml"}) {
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"list"}, {"describe", "demo"}, {"events", "demo"}, {"metrics", "demo"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"-o", format});
      const Ran ran = Run(arguments);
      EXPECT_EQ(ran.code, ExitCode::kOk) << command[0] << ": " << ran.err;
      EXPECT_THAT(ran.out, HasSubstr("77")) << command[0] << " as " << format;
    }
  }
  EXPECT_EQ(nlohmann::json::parse(Run({"list", "-o", "json"}).out)["jobs"][0]["state"], kNewValue);
}

TEST_F(UpgradeTest, WatchEndsWithAJobWhoseEndItDoesNotKnow) {
  v1::Job before = DemoJob();
  v1::Job between = DemoJob();
  between.set_state(static_cast<v1::Job::State>(kNewValue));
  v1::Job after = between;
  after.set_state(static_cast<v1::Job::State>(kNewValue + 1));
  after.set_end_unix_nanos(1795176000LL * 1'000'000'000);
  state().watch = {before, between, after, before, between, after};  // for both calls
  for (const bool terminal : {false, true}) {
    terminal_ = terminal;
    const Ran ran = Run({"watch", "demo"});
    EXPECT_EQ(ran.code, ExitCode::kFailed) << "it is not known to have gone well";
    EXPECT_THAT(ran.out, AllOf(HasSubstr("unknown(77)"), HasSubstr("unknown(78)")));
  }
}

TEST_F(UpgradeTest, AnOlderCoordinatorIsNamedAsTheReason) {
  state().failures["DumpStack"] = {grpc::Status(grpc::UNIMPLEMENTED, "")};
  const Ran ran = Run({"dump-stack", "demo"});
  EXPECT_EQ(ran.code, ExitCode::kPrecondition);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("does not know this request"), HasSubstr("nsa-coordinator"),
                             HasSubstr(coordinator_.address())));
}

}  // namespace
}  // namespace nsa::client
