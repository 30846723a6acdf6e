#include "server/rpc/heartbeat_limits.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

class HeartbeatLimits : public ::testing::Test {
 protected:
  HeartbeatLimits() { heartbeat_.mutable_node()->set_name("a"); }

  void ExpectRefused(const std::string& what) {
    EXPECT_THAT(CheckHeartbeat(heartbeat_),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)))
        << heartbeat_.ShortDebugString();
  }

  v1::HeartbeatRequest heartbeat_;
};

TEST_F(HeartbeatLimits, AVersionOfNcclIsAPlainWord) {
  for (const std::string& version : {std::string(257, '2'), std::string("2.28\x1b[31m"),
                                     std::string("2.28 \n"), std::string("-2")}) {
    heartbeat_.mutable_node()->set_nccl_version(version);
    ExpectRefused("node.nccl_version");
  }
  heartbeat_.mutable_node()->set_nccl_version("2.28.3");
  EXPECT_OK(CheckHeartbeat(heartbeat_));
}

TEST_F(HeartbeatLimits, AHashHasSixteenDigits) {
  for (const std::string hash :
       {"1", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef0", "\x1b[31m"}) {
    heartbeat_.mutable_node()->set_worker_hash(hash);
    ExpectRefused("node.worker_hash");
    heartbeat_.mutable_node()->clear_worker_hash();
    heartbeat_.mutable_node()->set_cuda_worker_hash(hash);
    ExpectRefused("node.cuda_worker_hash");
    heartbeat_.mutable_node()->clear_cuda_worker_hash();
  }
  heartbeat_.mutable_node()->set_worker_hash("0123456789abcdef");
  heartbeat_.mutable_node()->set_cuda_worker_hash("fedcba9876543210");
  EXPECT_OK(CheckHeartbeat(heartbeat_));
}

TEST_F(HeartbeatLimits, AnyTimeIsTaken) {
  for (const int64_t time : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max(),
                             std::numeric_limits<int64_t>::min()}) {
    heartbeat_.mutable_node()->set_unix_nanos(time);
    EXPECT_OK(CheckHeartbeat(heartbeat_));
  }
}

}  // namespace
}  // namespace nsa::server
