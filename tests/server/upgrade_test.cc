// Clients and agents of other versions. Fields and values that this coordinator does not know are
// either kept or refused by name; they are never dropped silently and never fatal.
#include <bit>
#include <functional>

#include "common/base/clock.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "tests/server/server_fixture.h"

namespace nsa::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNewField = 9001;
constexpr int kNewValue = 77;

// Adds a field of a newer schema to this message, or to it and all messages in it.
void AddNewField(Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(kNewField, 42);
}
void AddNewFieldEverywhere(Message* message) {
  AddNewField(message);
  const auto& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) {
      AddNewFieldEverywhere(reflection.MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
      AddNewFieldEverywhere(reflection.MutableRepeatedMessage(message, field, i));
    }
  }
}
bool HasNewField(const Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  return unknown.field_count() == 1 && unknown.field(0).number() == kNewField;
}

// Calls `visit` for every message type in a job's spec, with its path and a function that reaches
// it.
using Reach = std::function<Message*(Message*)>;
void VisitSections(const google::protobuf::Descriptor& type, const std::string& path,
                   const Reach& reach,
                   const std::function<void(const google::protobuf::Descriptor&, const std::string&,
                                            Reach)>& visit) {
  visit(type, path, reach);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) continue;
    VisitSections(
        *field->message_type(), absl::StrCat(path, ".", field->name()),
        [reach, field](Message* root) {
          Message* outer = reach(root);
          return outer->GetReflection()->MutableMessage(outer, field);
        },
        visit);
  }
}

// A newer client may send fields that this coordinator does not know.
TEST_F(ServerTest, ACallOfANewerClientIsAnsweredAsOneOfOurs) {
  v1::SubmitJobRequest submit;
  *submit.mutable_spec() = Spec("demo");
  AddNewField(&submit);
  const auto submitted =
      Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(), submit);
  ASSERT_OK(submitted);
  const std::string id = submitted->job().id();

  v1::GetJobRequest get;
  get.set_job(id);
  AddNewField(&get);
  EXPECT_OK(
      Call<v1::GetJobResponse>(&v1::CoordinatorService::Stub::GetJob, people_.get(), get).status());
  v1::ListNodesRequest nodes;
  AddNewField(&nodes);
  EXPECT_OK(
      Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes, people_.get(), nodes)
          .status());
  // No job is in a state that this version does not have, so an empty answer is right, and `list
  // --state active` of a newer client works.
  v1::ListJobsRequest list;
  AddNewField(&list);
  list.add_states(static_cast<v1::Job::State>(kNewValue));
  auto listed =
      Call<v1::ListJobsResponse>(&v1::CoordinatorService::Stub::ListJobs, people_.get(), list);
  ASSERT_OK(listed);
  EXPECT_EQ(listed->jobs_size(), 0);
  list.add_states(Job::STATE_QUEUED);
  listed = Call<v1::ListJobsResponse>(&v1::CoordinatorService::Stub::ListJobs, people_.get(), list);
  ASSERT_OK(listed);
  EXPECT_EQ(listed->jobs_size(), 1);

  const auto context = MakeContext(kTimeout, "");
  v1::WatchJobRequest watch;
  watch.set_job(id);
  AddNewField(&watch);
  const auto reader = people_->WatchJob(context.get(), watch);
  v1::WatchJobResponse seen;
  EXPECT_TRUE(reader->Read(&seen));
  context->TryCancel();

  v1::StopJobRequest stop;
  stop.set_job(id);
  stop.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
  AddNewField(&stop);
  EXPECT_OK(Call<v1::StopJobResponse>(&v1::CoordinatorService::Stub::StopJob, people_.get(), stop)
                .status());
}

// Training without the unknown setting would be a silent mistake.
TEST_F(ServerTest, ASpecThatIsOnlyPartlyUnderstoodIsRefused) {
  int sections = 0;
  int values = 0;
  const auto refused = [this](const v1::JobSpec& spec, const std::string& path,
                              const std::string& what) {
    grpc::Status wire;
    EXPECT_THAT(TrySubmit(spec, "", &wire).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(path + ": " + what), HasSubstr("is not known"))));
    EXPECT_EQ(DetailsOf(wire).reason, "NEWER_SPEC") << path;
  };
  VisitSections(
      *v1::JobSpec::descriptor(), "spec", [](Message* root) { return root; },
      [&](const auto& type, const std::string& path, const Reach& reach) {
        v1::JobSpec spec = Spec("demo");
        AddNewField(reach(&spec));
        refused(spec, path, absl::StrCat("field number ", kNewField));
        ++sections;
        for (int i = 0; i < type.field_count(); ++i) {
          const FieldDescriptor* field = type.field(i);
          if (field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
          spec = Spec("demo");
          Message* section = reach(&spec);
          if (field->is_repeated()) {
            section->GetReflection()->AddEnumValue(section, field, kNewValue);
          } else {
            section->GetReflection()->SetEnumValue(section, field, kNewValue);
          }
          refused(spec, absl::StrCat(path, ".", field->name(), field->is_repeated() ? "[0]" : ""),
                  absl::StrCat("value ", kNewValue));
          ++values;
        }
      });
  EXPECT_EQ(sections, 14);
  EXPECT_GE(values, 10);
  EXPECT_OK(TrySubmit(Spec("demo")).status());
}

// A client or a stored job of an earlier version.
TEST_F(ServerTest, AKeyThatIsGoneIsRefusedByNameUnlessItIsZero) {
  const auto submit = [this](double z_loss) {
    v1::JobSpec spec = Spec("demo");
    const Message& train = spec.train();
    const int number = train.GetDescriptor()->reserved_range(0)->start;
    train.GetReflection()
        ->MutableUnknownFields(spec.mutable_train())
        ->AddFixed64(number, std::bit_cast<uint64_t>(z_loss));
    return TrySubmit(spec, "").status();
  };
  EXPECT_THAT(submit(1e-4), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("spec.train.z_loss: is set (version"),
                                           HasSubstr("submit a job without it"))));
  EXPECT_OK(submit(0));
}

TEST_F(ServerTest, AKindOfStopThatIsNotKnownIsRefusedByName) {
  v1::StopJobRequest stop;
  stop.set_job(Submit(Spec("demo")));
  stop.mutable_stop()->set_mode(static_cast<v1::StopMode>(kNewValue));
  EXPECT_THAT(
      Call<v1::StopJobResponse>(&v1::CoordinatorService::Stub::StopJob, people_.get(), stop)
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("stop.mode: value 77 is not known"), HasSubstr("graceful"))));
  EXPECT_EQ(Get(stop.job()).state(), Job::STATE_QUEUED);
}

TEST_F(ServerTest, AMethodThatIsNotKnownIsUnimplementedAndTheServerGoesOn) {
  const grpc::internal::RpcMethod method("/nsa.v1.CoordinatorService/PauseJob",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  const auto channel = *OpenChannel(server_->listen_address(), {});
  const auto context = MakeContext(kTimeout, "");
  v1::GetJobRequest request;
  v1::GetJobResponse response;
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<v1::GetJobRequest, v1::GetJobResponse>(
          channel.get(), method, context.get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_OK(TrySubmit(Spec("demo")).status());
}

// A worker of a newer agent trains to its end, and its records are passed on completely.
TEST_F(ServerTest, AJobOnANewerAgentRunsAndItsRecordsAreKeptWhole) {
  const FakeAgent::Wire wire = Wire();
  FakeAgent agent(
      "newer", 1,
      {.heartbeat =
           [&wire](v1::HeartbeatRequest request) {
             AddNewFieldEverywhere(&request);
             for (v1::WorkerObservation& worker : *request.mutable_workers()) {
               // E.g. a variant of RUNNING that this version does not know.
               if (worker.state() == v1::WorkerObservation::STATE_RUNNING) {
                 worker.set_state(static_cast<v1::WorkerObservation::State>(kNewValue));
               }
             }
             return wire.heartbeat(request);
           },
       .records =
           [&wire](v1::ReportRecordsRequest request) {
             AddNewFieldEverywhere(&request);
             for (v1::WorkerRecord& record : *request.mutable_records()) {
               if (!record.has_step()) continue;
               record.mutable_step()->set_data_source(static_cast<v1::DataSource>(kNewValue));
               // And a kind of record that this version does not know.
               if (record.step().step() == 7) record.clear_kind();
             }
             return wire.records(request);
           },
       .dump = wire.dump});
  const std::string id = Submit(Spec("demo"));
  const absl::Duration give_up = RealClock().Monotonic() + absl::Seconds(60);
  while (!IsTerminal(Get(id).state()) && RealClock().Monotonic() < give_up) {
    ASSERT_OK(agent.Beat());
    agent.Train(1);
  }
  const Job job = Get(id);
  EXPECT_EQ(StateName(job.state()), "SUCCEEDED") << job.message();
  EXPECT_EQ(job.progress().step(), 20);
  Restart();
  const auto records = Records(id, 0);
  ASSERT_EQ(records.size(), 22u) << "started, twenty steps, finished";
  for (const auto& record : records) {
    EXPECT_TRUE(HasNewField(record.record()));
    if (!record.record().has_step()) continue;
    EXPECT_TRUE(HasNewField(record.record().step()));
    EXPECT_EQ(static_cast<int>(record.record().step().data_source()), kNewValue);
  }
  EXPECT_EQ(records[7].record().kind_case(), v1::WorkerRecord::KIND_NOT_SET);
}

}  // namespace
}  // namespace nsa::server
