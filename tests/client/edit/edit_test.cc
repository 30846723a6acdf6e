// nsactl label and nsactl note, against a fake coordinator.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(CommandsTest, LabelSetsAndRemovesAndShowsWhatIsLeft) {
  (*state().jobs[0].mutable_spec()->mutable_labels())["draft"] = "yes";
  EXPECT_THAT(Run({"label", "demo"}).out, HasSubstr("  draft=yes\n"));
  const Ran ran = Run({"label", "demo", "team=a=b", "draft-", "empty="});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("demo (jdemo1234567)\n"), HasSubstr("  empty=\n  team=a=b\n")));
  const auto sent = service().Requests("EditJob");
  ASSERT_THAT(sent, SizeIs(1)) << "showing changes nothing";
  EXPECT_THAT(sent[0], AllOf(HasSubstr("job: \"demo\""), HasSubstr("key: \"team\" value: \"a=b\""),
                             HasSubstr("remove_labels: \"draft\""), HasSubstr("request_id: \"")));
  const auto json = nlohmann::json::parse(Run({"label", "demo", "-o", "json"}).out);
  EXPECT_EQ(json["spec"]["labels"]["team"], "a=b");
  EXPECT_EQ(Run({"label", "nothing"}).code, ExitCode::kNotFound);
}

TEST_F(CommandsTest, AChangeOfALabelThatIsNoneIsRefusedBeforeAnythingIsSent) {
  for (const std::string change : {"team", "=x", "-", ""}) {
    const Ran ran = Run({"label", "demo", change});
    EXPECT_EQ(ran.code, ExitCode::kUsage) << change;
    EXPECT_THAT(ran.err, HasSubstr(absl::StrCat("'", change, "'"))) << change;
  }
  EXPECT_THAT(Run({"label", "demo", "a=1", "a=2"}).err, HasSubstr("'a': changed twice"));
  EXPECT_THAT(Run({"label", "demo", "a=1", "a-"}).err, HasSubstr("'a': changed twice"));
  EXPECT_THAT(service().Requests("EditJob"), IsEmpty());
}

TEST_F(CommandsTest, ANoteIsSentAgainWithTheSameRequestId) {
  state().failures["EditJob"] = {grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed")};
  const Ran ran = Run({"note", "demo", "a spike", "at 1,200"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ran.out, "demo (jdemo1234567): noted; `nsactl events jdemo1234567` shows it\n");
  const auto sent = service().Requests("EditJob");
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0], sent[1]);
  EXPECT_THAT(sent[0], HasSubstr("note: \"a spike at 1,200\""));
  EXPECT_EQ(Run({"note", "demo"}).code, ExitCode::kUsage);
  EXPECT_EQ(Run({"note", "demo", "x", "-o", "name"}).out, "jdemo1234567\n");
  const Ran both = Run({"note", "demo", "bad data", "--label", "run=7", "--yes"});
  EXPECT_EQ(both.code, ExitCode::kUsage);
  EXPECT_THAT(both.err, HasSubstr("TEXT: 'demo' and 1 more (one with --state or --label)"));
}

}  // namespace
}  // namespace nsa::client
