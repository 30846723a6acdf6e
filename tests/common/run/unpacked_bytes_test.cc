#include "common/run/unpacked_bytes.h"

#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

template <typename Message>
bool FitsAs(const std::string& bytes) {
  return UnpackedBytes(*Message::descriptor(), bytes).has_value();
}

// What these bytes take in memory as such a message, as protobuf says.
template <typename Message>
int64_t TakenBy(const std::string& bytes) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return static_cast<int64_t>(message.SpaceUsedLong());
}

// `count` empty elements of field `number`, below 16.
std::string Empties(int number, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += {static_cast<char>(number << 3 | 2), '\0'};
  return bytes;
}

// Field `number`, below 16, with this content.
std::string Field(int number, const std::string& content) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteTag(static_cast<uint32_t>(number << 3 | 2));
    coded.WriteVarint32(static_cast<uint32_t>(content.size()));
    coded.WriteString(content);
  }
  return bytes;
}

TEST(UnpackedBytes, RefusesElementsThatTakeMoreMemoryThanTheyHaveBytes) {
  EXPECT_TRUE(FitsAs<v1::HeartbeatRequest>(Empties(3, 10'000)));
  EXPECT_FALSE(FitsAs<v1::HeartbeatRequest>(Empties(3, 2'000'000)));
  EXPECT_FALSE(FitsAs<v1::ReportRecordsRequest>(Empties(4, 2'000'000)));
  EXPECT_FALSE(FitsAs<v1::ListJobsRequest>(Empties(4, 2'000'000)));
  // In a message within the message.
  const int labels = v1::JobSpec::descriptor()->FindFieldByName("labels")->number();
  EXPECT_FALSE(FitsAs<v1::SubmitJobRequest>(Field(2, Empties(labels, 2'000'000))));
  // Fields that are not known are kept, too.
  EXPECT_FALSE(FitsAs<v1::HeartbeatRequest>(Empties(15, 2'000'000)));
  EXPECT_FALSE(FitsAs<v1::HeartbeatRequest>(std::string(4'000'000, '\x7b'))) << "groups";
}

TEST(UnpackedBytes, TakesWhatIsAsLargeAsItLooks) {
  v1::ReportRecordsRequest records;
  for (int i = 0; i < 90'000; ++i) {
    v1::WorkerRecord& record = *records.add_records();
    record.set_sequence(records.records_size());
    record.mutable_event()->set_reason("CHECKPOINT_WRITTEN");
    record.mutable_event()->set_text("step 100 in 0.4 s");
  }
  const std::string full = records.SerializeAsString();
  EXPECT_GT(full.size(), 4'000'000U);
  EXPECT_TRUE(FitsAs<v1::ReportRecordsRequest>(full));
  v1::ListJobsRequest states;
  for (int i = 0; i < 4'000'000; ++i) states.add_states(v1::Job::STATE_RUNNING);
  EXPECT_TRUE(FitsAs<v1::ListJobsRequest>(states.SerializeAsString())) << "numbers";
  EXPECT_TRUE(FitsAs<v1::GetJobRequest>(Field(1, std::string(4'000'000, 'x'))));
  EXPECT_TRUE(FitsAs<v1::GetJobRequest>(""));
}

TEST(UnpackedBytes, LeavesBytesThatAreNoMessageToTheParser) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), std::string("\x1a\x7f"),
        std::string("\x1a\xff\xff\xff\xff\x7f"), std::string("\x0f"), std::string(1, '\0')}) {
    EXPECT_TRUE(FitsAs<v1::HeartbeatRequest>(bytes));
    EXPECT_FALSE(v1::HeartbeatRequest().ParseFromString(bytes));
  }
}

// `count` numbers of field `number`, below 16.
std::string Numbers(int number, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += {static_cast<char>(number << 3), '\1'};
  return bytes;
}

TEST(UnpackedBytes, CountsAtLeastWhatUnpackingTakes) {
  const int job = 1;     // GetJobRequest.job, a text
  const int states = 3;  // ListJobsRequest.states
  const auto expect_counted = [](std::optional<int64_t> counted, int64_t taken) {
    ASSERT_TRUE(counted.has_value());
    EXPECT_GE(*counted, taken);
  };
  const auto get = [](const std::string& bytes) {
    return UnpackedBytes(*v1::GetJobRequest::descriptor(), bytes);
  };
  const auto list = [](const std::string& bytes) {
    return UnpackedBytes(*v1::ListJobsRequest::descriptor(), bytes);
  };
  const std::string text = Field(job, std::string(1'000'000, 'x'));
  expect_counted(get(text), TakenBy<v1::GetJobRequest>(text));
  const std::string unknown = Empties(15, 10'000);
  expect_counted(get(unknown), TakenBy<v1::GetJobRequest>(unknown));
  const std::string packed = Field(states, std::string(1'000'000, '\1'));
  expect_counted(list(packed), TakenBy<v1::ListJobsRequest>(packed));
  const std::string numbers = Numbers(states, 1'000'000);
  expect_counted(list(numbers), TakenBy<v1::ListJobsRequest>(numbers));
  const std::string labels = Empties(4, 1'000);
  expect_counted(list(labels), TakenBy<v1::ListJobsRequest>(labels));
  const std::string workers = Empties(3, 1'000);
  expect_counted(UnpackedBytes(*v1::HeartbeatRequest::descriptor(), workers),
                 TakenBy<v1::HeartbeatRequest>(workers));
}

TEST(UnpackedBytes, AFieldOfAnotherTypeThanItsOwnIsUnknown) {
  EXPECT_FALSE(FitsAs<v1::GetJobRequest>(Numbers(1, 2'000'000)));
  EXPECT_FALSE(FitsAs<v1::HeartbeatRequest>(Numbers(3, 2'000'000)));
}

}  // namespace
}  // namespace nsa
