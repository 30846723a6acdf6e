#include "server/rpc/message_limit.h"

#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"

namespace nsa::server {
namespace {

template <typename Message>
bool FitsAs(const std::string& bytes) {
  return Fits(*Message::descriptor(), bytes);
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

TEST(MessageLimit, RefusesElementsThatTakeMoreMemoryThanTheyHaveBytes) {
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

TEST(MessageLimit, TakesWhatIsAsLargeAsItLooks) {
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

TEST(MessageLimit, LeavesBytesThatAreNoMessageToTheParser) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), std::string("\x1a\x7f"),
        std::string("\x1a\xff\xff\xff\xff\x7f"), std::string("\x0f"), std::string(1, '\0')}) {
    EXPECT_TRUE(FitsAs<v1::HeartbeatRequest>(bytes));
    EXPECT_FALSE(v1::HeartbeatRequest().ParseFromString(bytes));
  }
}

}  // namespace
}  // namespace nsa::server
