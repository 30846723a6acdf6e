// The `notices` of coordinator.yaml: what is accepted, and what a mistake is called.
#include "server/notice/notice.h"

#include <sys/stat.h>

#include <fstream>

#include "common/job/load.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class NoticeConfigTest : public ::testing::Test {
 protected:
  // A file of the test's folder with this content and mode.
  std::string File(const std::string& name, const std::string& content, mode_t mode = 0600) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  }

  absl::StatusOr<NoticeOptions> Load(const std::string& yaml,
                                     const std::vector<std::string>& allowed = {"https://"}) {
    v1::CoordinatorConfig config;
    const auto loaded = LoadYamlText(yaml, "coordinator.yaml", &config);
    if (!loaded.ok()) return loaded.status();
    if (config.sendmail_program().empty()) config.set_sendmail_program("/bin/true");
    return ResolveNotices(config, *UrlPolicy::Make(allowed));
  }

  void ExpectRefused(const std::string& yaml, const std::string& why) {
    EXPECT_THAT(Load(yaml).status().message(), HasSubstr(why)) << yaml;
  }

  TempDir folder_;
};

TEST_F(NoticeConfigTest, WithoutNoticesThereIsNothingToResolve) {
  EXPECT_THAT(Load("local_agent: false\n")->notices, SizeIs(0));
}

TEST_F(NoticeConfigTest, AWebhookIsJsonAndOneOfSlackIsSlackUnlessItSaysOtherwise) {
  const auto options = Load(R"(
page_url: https://nsa.example/page
notices:
- {name: a, url: "https://Hooks.Example.com:8443/x?y=z"}
- {name: b, url: https://hooks.slack.com/services/T/B/x}
- {name: c, url: https://hooks.slack.com/services/T/B/x, format: json}
- {name: d, url: https://chat.example/hooks/1, format: slack, labels: {team: speech}}
)");
  ASSERT_OK(options);
  ASSERT_THAT(options->notices, SizeIs(4));
  EXPECT_EQ(options->notices[0].form, NoticeForm::kJson);
  EXPECT_EQ(options->notices[0].place, "webhook https://hooks.example.com:8443");
  EXPECT_FALSE(options->notices[0].any_address);
  EXPECT_FALSE(options->notices[0].proxy);
  EXPECT_EQ(options->notices[1].form, NoticeForm::kSlack);
  EXPECT_EQ(options->notices[2].form, NoticeForm::kJson);
  EXPECT_EQ(options->notices[3].form, NoticeForm::kSlack);
  EXPECT_EQ(options->notices[3].rule.labels.at("team"), "speech");
  EXPECT_EQ(options->page_url, "https://nsa.example/page/");
}

TEST_F(NoticeConfigTest, UrlAndKeyMayBeInFilesThatOnlyTheirOwnerReads) {
  const std::string url = File("url", "https://hooks.example.com/s3cr3t\n");
  const std::string key = File("key", "0123456789abcdef\n");
  const auto options =
      Load("notices: [{name: a, url_file: " + url + ", secret_file: " + key + "}]\n");
  ASSERT_OK(options);
  EXPECT_EQ(options->notices[0].url, "https://hooks.example.com/s3cr3t");
  EXPECT_EQ(options->notices[0].key, "0123456789abcdef");
  chmod(url.c_str(), 0644);
  EXPECT_THAT(Load("notices: [{name: a, url_file: " + url + "}]\n"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("run chmod 600")));
  chmod(key.c_str(), 0640);
  EXPECT_THAT(
      Load("notices: [{name: a, url: https://x.example/, secret_file: " + key + "}]\n"),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr("notices[0] (a): secret_file"), HasSubstr("run chmod 600"))));
  EXPECT_THAT(Load("notices: [{name: a, url_file: /no/such/file}]\n"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("url_file: /no/such/file cannot be read (No such file")));
  const std::string empty = File("empty", "\n");
  EXPECT_THAT(Load("notices: [{name: a, url_file: " + empty + "}]\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no address in its first")));
}

TEST_F(NoticeConfigTest, AMistakeNamesTheNoticeTheFieldAndTheRemedy) {
  ExpectRefused("notices: [{url: https://x.example/}]", "notices[0] (): name: '' (1 to 63 letters");
  ExpectRefused("notices: [{name: a b, url: https://x.example/}]", "name: 'a b'");
  ExpectRefused("notices: [{name: a, url: https://x.example/}, {name: a, email: [x@y.example]}]",
                "notices[1] (a): name: used twice");
  ExpectRefused("notices: [{name: a}]", "url, url_file, email: 0 are set (exactly one)");
  ExpectRefused("notices: [{name: a, url: https://x.example/, email: [x@y.example]}]",
                "2 are set (exactly one)");
  ExpectRefused("notices: [{name: a, url: https://x.example/, events: [COMPLETD]}]",
                "events: 'COMPLETD' is not a reason of an event; did you mean COMPLETED?");
  ExpectRefused("notices: [{name: a, email: [x@y.example], format: slack}]",
                "format: set for e-mail");
  ExpectRefused("notices: [{name: a, urll: https://x.example/}]", "did you mean 'url'?");
  ExpectRefused("page_url: \"https://x.example/?a=b\"", "page_url: ");
  ExpectRefused("page_url: nsa.example", "page_url: 'nsa.example'");
  std::string many = "notices:\n";
  for (int i = 0; i < 33; ++i)
    many += "- {name: n" + std::to_string(i) + ", email: [x@y.example]}\n";
  ExpectRefused(many, "notices: 33 (at most 32)");
}

TEST_F(NoticeConfigTest, HttpNeedsAHostThatAllowedUrlsNames) {
  const std::string yaml = "notices: [{name: a, url: http://10.0.0.7:9000/hook/s3cr3t}]\n";
  EXPECT_THAT(Load(yaml, {"https://", "http://"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("add http://10.0.0.7:9000/"), Not(HasSubstr("s3cr3t")))));
  const auto options = Load(yaml, {"http://10.0.0.7:9000/"});
  ASSERT_OK(options);
  EXPECT_TRUE(options->notices[0].any_address);
  EXPECT_FALSE(options->notices[0].proxy);
  EXPECT_TRUE(Load(yaml, {"*"})->notices[0].proxy);
}

TEST_F(NoticeConfigTest, NoMessageShowsThePathOfAUrl) {
  for (const char* bad : {"ftp://x.example/s3cr3t", "https://u:s3cr3t@x.example/", "s3cr3t-s3cr3t-",
                          "https://x.example/a/../s3cr3t", "\"https://x.example/ s3cr3t\"",
                          "\"https://x.example/s3cr3t#f\"", "https:///s3cr3t"}) {
    const auto options = Load("notices: [{name: a, url: " + std::string(bad) + "}]\n");
    EXPECT_THAT(options, StatusIs(absl::StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr("(a): url: "), Not(HasSubstr("s3cr3t")))))
        << bad;
  }
  const auto too_long =
      Load("notices: [{name: a, url: https://x.example/" + std::string(5'000, 's') + "}]\n");
  EXPECT_THAT(too_long, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("5018 bytes of 4000"), Not(HasSubstr("sss")))));
}

TEST_F(NoticeConfigTest, AddressesAreAddressesAndNothingElse) {
  const auto options = Load("notices: [{name: a, email: [ada@example.com, b.c+d@sub.example]}]\n");
  ASSERT_OK(options);
  EXPECT_EQ(options->notices[0].form, NoticeForm::kMail);
  EXPECT_THAT(options->notices[0].addresses, ElementsAre("ada@example.com", "b.c+d@sub.example"));
  EXPECT_EQ(options->notices[0].place, "e-mail to 2 addresses");
  for (const char* bad :
       {"ada", "\"@x.example\"", "ada@", "-oQ/tmp@x.example", "\"Ada <a@x.example>\"",
        "\"a@x.example,b@x.example\"", "\"a@x.example\\nBcc: b@x.example\"", "a@b@x.example",
        "\"a b@x.example\"", "ä@x.example"}) {
    ExpectRefused("notices: [{name: a, email: [" + std::string(bad) + "]}]", "is not an address");
  }
}

TEST_F(NoticeConfigTest, EmailNeedsAProgramThatSendsIt) {
  const std::string mail = "notices: [{name: a, email: [ada@example.com]}]\nsendmail_program: ";
  EXPECT_OK(Load(mail + File("good", "#!/bin/sh\n", 0700)));
  for (const std::string& bad : {File("bad", "", 0600), std::string("sendmail"),
                                 std::string("/no/such/program"), folder_.path().string()}) {
    ExpectRefused(mail + bad, "sendmail_program: ");
  }
  EXPECT_OK(Load("notices: [{name: a, url: https://x.example/}]\nsendmail_program: /no/such\n"))
      << "nobody needs it";
}

}  // namespace
}  // namespace nsa::server
