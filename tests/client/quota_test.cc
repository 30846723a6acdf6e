// nsactl quota: what it prints, against a fake coordinator.
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

class QuotaTest : public CommandsTest {};

TEST_F(QuotaTest, ShowsWhatEachOwnerTakesAndMay) {
  v1::OwnerUse& ada = *state().use.add_owners();
  ada.set_owner("ada");
  ada.set_jobs(3);
  ada.set_ranks(8);
  ada.set_gpu_seconds(3'600 * 12.5);
  ada.set_window_days(7);
  ada.mutable_quota()->set_jobs(12);
  ada.mutable_quota()->set_highest_priority(5);
  ada.mutable_quota()->mutable_gpu_time()->set_hours(100);
  v1::OwnerUse& bob = *state().use.add_owners();
  bob.set_owner("bob");
  bob.set_window_days(7);
  EXPECT_EQ(Run({"quota"}).out,
            "OWNER  JOBS  RANKS  GPU HOURS  IN THE LAST  MAX PRIORITY  GPUS AGAIN FROM\n"
            "ada    3/12      8   12.5/100          7 d             5  -\n"
            "bob       0      0        0.0          7 d             -  -\n");
  EXPECT_EQ(Run({"quota", "-o", "name"}).out, "ada\nbob\n");
  EXPECT_EQ(nlohmann::json::parse(Run({"quota", "-o", "json"}).out)["owners"][0]["owner"], "ada");
}

TEST_F(QuotaTest, SaysThatThereIsNobody) {
  const Ran ran = Run({"quota"});
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "nobody has jobs or has used GPUs lately\n");
}

}  // namespace
}  // namespace nsa::client
