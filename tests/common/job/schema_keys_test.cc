#include "common/job/schema_keys.h"

#include "gmock/gmock.h"
#include "nsa/v1/job.pb.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;

TEST(SchemaKeys, AreThoseOfTheFileAndOfItsSections) {
  std::vector<std::string> keys;
  std::vector<std::string> sections;
  for (const SchemaKey& key : SchemaKeys(*v1::JobSpec::descriptor())) {
    (key.IsSection() ? sections : keys).push_back(key.Path());
  }
  EXPECT_THAT(keys, AllOf(Contains("name"), Contains("train.lr"), Contains("data.mix"),
                          Contains("preflight.waive"), Not(Contains("train"))));
  EXPECT_THAT(sections, AllOf(Contains("train"), Contains("nsa"), Not(Contains("data.mix"))));
}

}  // namespace
}  // namespace nsa
