// The Unix user of a token, and of the jobs that are submitted with it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/server/server_fixture.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

class UnixUserTest : public ServerTest {
 protected:
  absl::StatusOr<std::string> MakeToken(v1::Role role, const std::string& name,
                                        const std::string& node, const std::string& unix_user) {
    v1::CreateTokenRequest request;
    request.set_role(role);
    request.set_name(name);
    request.set_node(node);
    request.set_unix_user(unix_user);
    const auto made = Call<v1::CreateTokenResponse>(&v1::CoordinatorService::Stub::CreateToken,
                                                    people_.get(), request);
    if (!made.ok()) return made.status();
    return made->secret();
  }

  absl::StatusOr<std::string> SubmitAs(const std::string& token, const std::string& name) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec(name);
    v1::SubmitJobResponse response;
    const auto context = MakeContext(kTimeout, token);
    const grpc::Status status = people_->SubmitJob(context.get(), request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response.job().id();
  }
};

TEST_F(UnixUserTest, OnlyTokensThatSubmitNameAUnixUserAndItIsAnOrdinaryName) {
  using enum absl::StatusCode;
  for (const char* name : {"root", "0", "1000", "-ada", "Ada", "a da", "ada\n", "../ada", "a.b",
                           "a_name_of_more_than_32_characters"}) {
    EXPECT_THAT(MakeToken(v1::ROLE_SUBMITTER, "ada", "", name).status(),
                StatusIs(kInvalidArgument, HasSubstr("unix_user: '")))
        << name;
  }
  EXPECT_THAT(MakeToken(v1::ROLE_VIEWER, "ada", "", "ada").status(),
              StatusIs(kInvalidArgument, HasSubstr("submits no jobs")));
  EXPECT_THAT(MakeToken(v1::ROLE_AGENT, "", "b", "ada").status(),
              StatusIs(kInvalidArgument, HasSubstr("submits no jobs")));
  for (const char* name : {"ada", "_apt", "a", "ml-user_7", "a_name_of_just_32_characters_xyz"}) {
    EXPECT_OK(MakeToken(v1::ROLE_SUBMITTER, absl::StrCat("of-", name), "", name)) << name;
  }
}

TEST_F(UnixUserTest, AJobRunsAsTheUnixUserOfItsTokenAlsoAfterRotationAndRestart) {
  const std::string ada = *MakeToken(v1::ROLE_SUBMITTER, "ada", "", "ada_l");
  const auto first = SubmitAs(ada, "one");
  ASSERT_OK(first);
  EXPECT_EQ(Get(*first).unix_user(), "ada_l");
  EXPECT_EQ(Get(Submit(Spec("local"))).unix_user(), "") << "the unix socket names no user";

  v1::RotateTokenRequest rotate;
  rotate.set_token("ada");
  const auto rotated = Call<v1::RotateTokenResponse>(&v1::CoordinatorService::Stub::RotateToken,
                                                     people_.get(), rotate);
  ASSERT_OK(rotated);
  EXPECT_EQ(rotated->token().unix_user(), "ada_l");
  Restart();
  EXPECT_EQ(Get(*first).unix_user(), "ada_l");
  const auto second = SubmitAs(rotated->secret(), "two");
  ASSERT_OK(second);
  EXPECT_EQ(Get(*second).unix_user(), "ada_l");

  v1::ListAuditRequest request;
  const auto audit =
      Call<v1::ListAuditResponse>(&v1::CoordinatorService::Stub::ListAudit, people_.get(), request);
  ASSERT_OK(audit);
  EXPECT_TRUE(std::ranges::any_of(audit->entries(), [](const v1::AuditEntry& entry) {
    return entry.what() == "CreateToken" && entry.subject() == "ada with Unix user ada_l";
  }));
}

}  // namespace
}  // namespace nsa::server
