#include "common/rpc/service_config.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"

namespace nsa {
namespace {

using google::protobuf::FileDescriptor;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const FileDescriptor* const kCoordinator = v1::SubmitJobRequest::descriptor()->file();
const FileDescriptor* const kFleet = v1::HeartbeatRequest::descriptor()->file();

std::set<std::string> Retried() {
  std::set<std::string> names;
  for (const auto* method : RetriedMethods({kCoordinator, kFleet})) names.insert(method->name());
  return names;
}

TEST(ServiceConfig, AMethodIsRetriedOnlyWhenTheProtoSaysSo) {
  EXPECT_THAT(
      Retried(),
      UnorderedElementsAre("SubmitJob", "GetJob", "ListJobs", "WatchJob", "WatchEvents",
                           "WatchRecords", "GetCurves", "StreamLogs", "StopJob", "ResumeJob",
                           "DeleteJob", "EditJob", "DumpStack", "ListSavedStacks", "GetSavedStacks",
                           "ListCheckpoints", "VerifyCheckpoint", "ListNodes", "CordonNode",
                           "UncordonNode", "GetVersion", "ListTokens", "ListAudit", "ListUse",
                           "Join", "ReportRecords", "ReportLog", "ReportDump", "ReportProfile"))
      << "Heartbeat does something else when it arrives twice";
}

TEST(ServiceConfig, AMethodWithoutTheOptionIsNotRetried) {
  google::protobuf::FileDescriptorProto file;
  file.set_name("made_up.proto");
  file.add_message_type()->set_name("Message");
  auto* service = file.add_service();
  service->set_name("Service");
  for (const char* name : {"Plain", "Safe"}) {
    auto* method = service->add_method();
    method->set_name(name);
    method->set_input_type("Message");
    method->set_output_type("Message");
  }
  google::protobuf::DescriptorPool pool;
  EXPECT_THAT(RetriedMethods({pool.BuildFile(file)}), IsEmpty());

  file.set_name("again.proto");
  file.set_package("again");
  service->mutable_method(1)->mutable_options()->set_idempotency_level(
      google::protobuf::MethodOptions::IDEMPOTENT);
  const auto retried = RetriedMethods({pool.BuildFile(file)});
  ASSERT_EQ(retried.size(), 1u);
  EXPECT_EQ(retried.front()->full_name(), "again.Service.Safe");
}

TEST(ServiceConfig, IsJsonWithOneEntryForTheRetriedMethods) {
  google::protobuf::Struct config;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ServiceConfig(), &config).ok());
  const auto& entries = config.fields().at("methodConfig").list_value();
  ASSERT_EQ(entries.values_size(), 1);
  const auto& entry = entries.values(0).struct_value().fields();
  EXPECT_TRUE(entry.contains("retryPolicy"));
  std::set<std::string> names;
  for (const auto& name : entry.at("name").list_value().values()) {
    names.insert(name.struct_value().fields().at("method").string_value());
  }
  EXPECT_EQ(names, Retried());
}

}  // namespace
}  // namespace nsa
