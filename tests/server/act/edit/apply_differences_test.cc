#include "server/act/edit/apply_differences.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(ApplyDifferences, KeepsWhatOthersChangedMeanwhile) {
  v1::JobSpec before = TinyJob("demo", "/out");
  (*before.mutable_labels())["kept"] = "1";
  (*before.mutable_labels())["changed"] = "1";
  (*before.mutable_labels())["unsaid"] = "1";
  v1::JobSpec after = before;
  after.mutable_train()->set_steps(40);
  after.clear_preflight();
  (*after.mutable_labels())["changed"] = "2";
  after.mutable_labels()->erase("unsaid");
  (*after.mutable_labels())["new"] = "1";
  v1::JobSpec now = before;
  (*now.mutable_labels())["meanwhile"] = "1";
  (*now.mutable_labels())["kept"] = "2";
  now.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  ASSERT_OK(ApplyDifferences(before, after, &now));
  EXPECT_EQ(now.train().steps(), 40);
  EXPECT_FALSE(now.has_preflight());
  EXPECT_EQ(now.runtime().device(), v1::DEVICE_CUDA);
  EXPECT_THAT(now.labels(),
              UnorderedElementsAre(Pair("kept", "2"), Pair("changed", "2"), Pair("unsaid", "1"),
                                   Pair("new", "1"), Pair("meanwhile", "1")));
}

TEST(ApplyDifferences, WithoutDifferencesChangesNothing) {
  const v1::JobSpec before = TinyJob("demo", "/out");
  v1::JobSpec now = before;
  (*now.mutable_labels())["meanwhile"] = "1";
  const std::string text = now.SerializeAsString();
  ASSERT_OK(ApplyDifferences(before, before, &now));
  EXPECT_EQ(now.SerializeAsString(), text);
}

TEST(ApplyDifferences, TooManyLabelsTogetherAreRefused) {
  const v1::JobSpec before = TinyJob("demo", "/out");
  v1::JobSpec after = before;
  v1::JobSpec now = before;
  for (int i = 0; i < 40; ++i) {
    (*after.mutable_labels())[absl::StrCat("a", i)] = "";
    (*now.mutable_labels())[absl::StrCat("b", i)] = "";
  }
  EXPECT_THAT(ApplyDifferences(before, after, &now), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace nsa::server
