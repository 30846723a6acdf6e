// The Unix user of a token, and of the jobs that are submitted with it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/data/prepared.h"
#include "common/job/load.h"
#include "nsa/v1/checkpoint.pb.h"
#include "tests/server/server_fixture.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

  // All that the owner of a token is told about a job that is checked, and about one that is
  // submitted.
  std::string ToldAbout(const std::string& token, const v1::JobSpec& spec) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_validate_only(true);
    v1::SubmitJobResponse response;
    const grpc::Status checked =
        people_->SubmitJob(MakeContext(kTimeout, token).get(), request, &response);
    EXPECT_FALSE(response.report().accepted());
    std::string told = checked.error_message();  // of an out_dir behind a link, for example
    for (const v1::Finding& finding : response.report().findings()) {
      absl::StrAppend(&told, finding.ShortDebugString(), "\n");
    }
    absl::StrAppend(&told, response.report().start());
    request.set_validate_only(false);
    const grpc::Status submitted =
        people_->SubmitJob(MakeContext(kTimeout, token).get(), request, &response);
    EXPECT_FALSE(submitted.ok());
    return absl::StrCat(told, submitted.error_message(), submitted.error_details());
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

// The coordinator may read what the submitter may not. It tells nothing of it.
TEST_F(UnixUserTest, AManifestThatIsALinkToAnothersFileIsNotQuoted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may read what nobody may not";
  fs::permissions(folder_.path(), fs::perms(0755));
  const std::string nobody = *MakeToken(v1::ROLE_SUBMITTER, "n", "", "nobody");
  const fs::path prepared = folder_ / absl::StrCat("data", std::string(kPreparedEnding));
  fs::create_directories(prepared);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
  spec.mutable_data()->add_path(prepared.string());
  const std::string secret = "0123456789abcdef0123456789abcdef";
  for (const std::string& text : {secret, absl::StrCat("{\"", secret, "\": 1}"),
                                  absl::StrCat("{\"separator\": \"", secret, "\"}")}) {
    std::ofstream(folder_ / "secret", std::ios::trunc) << text;
    fs::permissions(folder_ / "secret", fs::perms(0600));
    fs::remove(prepared / kPreparedManifest);
    fs::create_symlink(folder_ / "secret", prepared / kPreparedManifest);
    const std::string told = ToldAbout(nobody, spec);
    EXPECT_THAT(told, AllOf(HasSubstr("Permission denied for the Unix user nobody"),
                            Not(HasSubstr(secret.substr(0, 6)))))
        << told;
  }
}

TEST_F(UnixUserTest, AnOutDirThatTheUserCannotEnterTellsNothingOfItsJob) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may enter what nobody may not";
  fs::permissions(folder_.path(), fs::perms(0755));
  const std::string nobody = *MakeToken(v1::ROLE_SUBMITTER, "n", "", "nobody");
  v1::JobSpec spec = Spec("demo");
  const fs::path out_dir = spec.train().out_dir();
  fs::create_directories(CheckpointsDir(out_dir));
  fs::permissions(out_dir, fs::perms(0700));
  spec.mutable_restart()->set_init((CheckpointsDir(out_dir) / CheckpointName(7)).string());
  const std::string empty = ToldAbout(nobody, spec);
  // Another's configuration.
  v1::CheckpointState state;
  state.set_format_version(1);
  state.set_step(7);
  *state.mutable_spec() = Spec("theirs");
  state.mutable_spec()->mutable_train()->set_seq_len(987);
  state.mutable_spec()->mutable_model()->set_n_layers(13);
  state.set_job_hash(JobHash(state.spec()));
  const fs::path checkpoint = CheckpointsDir(out_dir) / CheckpointName(7);
  fs::create_directories(checkpoint);
  std::ofstream(checkpoint / "state.json") << *SerializeCheckpointState(state);
  std::ofstream(out_dir / "owner.json") << "{\"job_id\": \"jtheirs\"}";
  const std::string told = ToldAbout(nobody, spec);
  EXPECT_EQ(told, empty) << "the same as of a folder with nothing in it";
  fs::permissions(out_dir, fs::perms(0755));
  EXPECT_NE(ToldAbout(nobody, spec), empty) << "whoever may read it is told";
}

// What a job names in a folder that its user cannot enter, also by links, and what is then made
// there: a file, or a folder if the name has no dot.
struct Named {
  const char* what;
  std::function<void(v1::JobSpec*, const fs::path& closed, const fs::path& links)> name;
  const char* made;
};

void ReadText(v1::JobSpec* spec, const fs::path& path) {
  spec->mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  spec->mutable_data()->add_path(path);
}

void ReadTokens(v1::JobSpec* spec, const fs::path& path) {
  spec->mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
  spec->mutable_data()->add_path(path);
}

const Named kNamed[] = {
    {"data", [](auto* spec, auto& closed, auto&) { ReadText(spec, closed / "data"); }, "data"},
    {"prepared data", [](auto* spec, auto& closed, auto&) { ReadTokens(spec, closed / "tokens"); },
     "tokens"},
    {"a link to data", [](auto* spec, auto&, auto& links) { ReadText(spec, links / "data"); },
     "data"},
    {"a link to prepared data",
     [](auto* spec, auto&, auto& links) { ReadTokens(spec, links / "tokens"); }, "tokens"},
    {"a link to a folder within",
     [](auto* spec, auto&, auto& links) { ReadTokens(spec, links / "pub/tokens"); }, "pub/tokens"},
    {"a file with the name of a pattern",
     [](auto* spec, auto& closed, auto&) { ReadText(spec, closed / "a[1].txt"); }, "a[1].txt"},
    {"a tokenizer",
     [](auto* spec, auto& closed, auto&) {
       ReadText(spec, closed / "data");
       spec->mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
       spec->mutable_data()->set_tokenizer_path(closed / "pub");
     },
     "pub/tokenizer.json"},
    {"one file twice",
     [](auto* spec, auto& closed, auto& links) {
       ReadText(spec, links / "text.txt");
       spec->mutable_data()->add_val_path(closed / "text.txt");
     },
     "text.txt"},
    {"out_dir",
     [](auto* spec, auto& closed, auto&) {
       ReadText(spec, closed / "data");
       spec->mutable_train()->set_out_dir(closed / "run-{n}");
     },
     "run-1"},
    {"a link to out_dir",
     [](auto* spec, auto& closed, auto& links) {
       ReadText(spec, closed / "data");
       spec->mutable_train()->set_out_dir(links / "run.x");
     },
     "run.x"},
};

TEST_F(UnixUserTest, AFolderThatTheUserCannotEnterTellsNothingOfItsNames) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may enter what nobody may not";
  fs::permissions(folder_.path(), fs::perms(0755));
  const std::string nobody = *MakeToken(v1::ROLE_SUBMITTER, "n", "", "nobody");
  const fs::path links = folder_ / "links", closed = folder_ / "closed";
  fs::create_directory(links);
  for (const char* name : {"data", "tokens", "pub", "text.txt", "run.x"}) {
    fs::create_symlink(closed / name, links / name);
  }
  for (const Named& named : kNamed) {
    SCOPED_TRACE(named.what);
    fs::create_directories(closed / "pub");
    fs::permissions(closed, fs::perms(0700));
    v1::JobSpec spec = Spec("demo");
    named.name(&spec, closed, links);
    const std::string empty = ToldAbout(nobody, spec);
    if (fs::path(named.made).has_extension()) {
      std::ofstream(closed / named.made) << "a file";
    } else {
      fs::create_directories(closed / named.made);
    }
    EXPECT_EQ(ToldAbout(nobody, spec), empty) << "the same as of a folder with nothing in it";
    fs::remove_all(closed);
  }
}

}  // namespace
}  // namespace nsa::server
