// What a notice says, with names and texts of people who mean harm.
#include "server/notice/message/message.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace nsa::server {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const Teller kTeller = {.notice = "ops", .host = "lab", .page_url = "https://nsa.example/"};

Telling Tell(int64_t sequence, const std::string& name, const std::string& text,
             v1::Severity severity = v1::SEVERITY_ERROR) {
  Telling telling;
  telling.event.set_sequence(sequence);
  telling.event.set_unix_nanos(absl::ToUnixNanos(kNow) + 123'000'000);
  telling.event.set_reason("RANK_CRASHED");
  telling.event.set_severity(severity);
  telling.event.set_state(v1::Job::STATE_RESTARTING);
  telling.event.set_text(text);
  telling.event.set_generation(2);
  telling.event.set_rank(1);
  auto job = std::make_shared<v1::StoredJob>();
  job->mutable_job()->set_id("jabc");
  job->mutable_job()->set_name(name);
  job->mutable_job()->set_owner("ada");
  job->mutable_job()->set_state(v1::Job::STATE_RUNNING);
  (*job->mutable_job()->mutable_spec()->mutable_labels())["team"] = "speech";
  job->mutable_job()->mutable_progress()->set_step(12);
  job->mutable_job()->mutable_progress()->set_total_steps(50);
  job->mutable_job()->mutable_progress()->set_loss(2.5);
  telling.job = job;
  return telling;
}

std::string Mail(const std::vector<Telling>& tellings) {
  return MailMessage(tellings, kTeller, {"ada@example.com", "bob@example.com"}, kNow);
}

// The lines in front of the first empty one.
std::vector<std::string> HeaderOf(const std::string& mail) {
  return absl::StrSplit(mail.substr(0, mail.find("\n\n")), '\n');
}

TEST(NoticeMessage, JsonHasTheDocumentedLayout) {
  EXPECT_EQ(json::parse(JsonMessage(Tell(17, "demo", "signal 11"), kTeller)), json::parse(R"({
    "format_version": 1, "notice": "ops", "coordinator": "lab",
    "event": {"sequence": 17, "time": "2027-01-15T08:00:00.123Z", "reason": "RANK_CRASHED",
              "severity": "error", "state": "RESTARTING", "text": "signal 11", "generation": 2,
              "rank": 1},
    "problem": {"cause": "A rank failed", "evidence": "", "remedies": [
        {"text": "Last 20 lines of the log of rank 1",
         "command": "nsactl logs jabc --tail 20 --rank 1"},
        {"text": "What happened", "command": "nsactl events jabc"}]},
    "job": {"id": "jabc", "name": "demo", "owner": "ada", "labels": {"team": "speech"},
            "state": "RUNNING", "restarts": 0, "step": 12, "total_steps": 50, "loss": 2.5,
            "val_loss": null},
    "url": "https://nsa.example/#/job/jabc"})"));
}

TEST(NoticeMessage, JsonLeavesOutWhatIsNotKnown) {
  Telling telling = Tell(17, "demo", "");
  telling.event.set_rank(-1);
  auto job = std::make_shared<v1::StoredJob>(*telling.job);
  job->mutable_job()->mutable_progress()->set_loss(std::numeric_limits<double>::quiet_NaN());
  telling.job = job;
  const json message = json::parse(JsonMessage(telling, {.notice = "ops", .host = "lab"}));
  EXPECT_TRUE(message["event"]["rank"].is_null());
  EXPECT_EQ(message["job"]["loss"], "NaN");
  EXPECT_TRUE(message["url"].is_null());
  EXPECT_FALSE(message.contains("sample"));
  telling.sample = true;
  EXPECT_TRUE(json::parse(JsonMessage(telling, kTeller))["sample"]);
}

TEST(NoticeMessage, JsonCutsAndCleansTexts) {
  std::string text = "\x1b]0;owned\x07\xff\xe2\x80\xae";
  while (text.size() < 20'000) text += "ü";
  const json message = json::parse(JsonMessage(Tell(1, "a\nb", text), kTeller));
  const std::string sent = message["event"]["text"];
  EXPECT_THAT(sent, AllOf(StartsWith("\\x1b]0;owned\\x07\\xff\\u202e"), EndsWith("ü…")));
  EXPECT_THAT(sent, SizeIs(::testing::Le(kJsonTextBytes + 3)));
  EXPECT_EQ(message["job"]["name"], "a\\nb");
}

TEST(NoticeMessage, SlackHasALineForEachEventWithALink) {
  const json message = json::parse(SlackMessage(
      std::vector{Tell(1, "demo", "signal 11"), Tell(2, "demo", "", v1::SEVERITY_INFO)}, kTeller));
  EXPECT_EQ(message, json({{"text",
                            "error: <https://nsa.example/#/job/jabc|demo> is restarting, "
                            "RANK_CRASHED: signal 11; try: nsactl logs jabc --tail 20 --rank 1\n"
                            "<https://nsa.example/#/job/jabc|demo> is restarting, RANK_CRASHED"}}));
}

TEST(NoticeMessage, SlackGetsNeitherMarkupNorMentionsFromATextNorASecondLine) {
  const std::string hostile = "<!channel> & <https://evil.example|log in> @all\n@here a@b.example";
  const std::string text =
      json::parse(SlackMessage(std::vector{Tell(1, "<x|y>", hostile)}, kTeller))["text"];
  EXPECT_THAT(text, HasSubstr("&lt;!channel&gt; &amp; &lt;https://evil.example|log in&gt;"));
  EXPECT_THAT(text, HasSubstr("@\u200ball\\n"));
  EXPECT_THAT(text, HasSubstr("a@b.example")) << "an address stays as it is";
  EXPECT_THAT(text, HasSubstr("|&lt;x|y&gt;>"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

TEST(NoticeMessage, SlackIsBoundedWhateverTheTextsAre) {
  const std::vector<Telling> many(50, Tell(1, std::string(5'000, '&'), std::string(99'999, '&')));
  EXPECT_THAT(SlackMessage(many, kTeller), SizeIs(::testing::Lt(128u << 10)));
}

TEST(NoticeMessage, MailHasItsHeaderAndAParagraphForEachEvent) {
  const std::string mail = Mail({Tell(17, "demo", "signal 11\nsecond line")});
  EXPECT_EQ(HeaderOf(mail), (std::vector<std::string>{
                                "To: ada@example.com,", " bob@example.com",
                                "Subject: [nsa] demo is restarting, RANK_CRASHED",
                                "Date: Fri, 15 Jan 2027 08:00:00 +0000",
                                "Message-ID: <nsa.17-17.1800000000123000000.ops@lab>",
                                "X-NSA-Delivery: 17", "Auto-Submitted: auto-generated",
                                "MIME-Version: 1.0", "Content-Type: text/plain; charset=utf-8",
                                "Content-Transfer-Encoding: quoted-printable"}));
  EXPECT_THAT(mail, HasSubstr("\n\ndemo is restarting\n  reason    RANK_CRASHED (error)\n"
                              "  at        2027-01-15 08:00:00 UTC\n"));
  EXPECT_THAT(mail, HasSubstr("step 12 of 50, loss 2.5\n"));
  EXPECT_THAT(mail, HasSubstr("  cause     A rank failed\n"
                              "  try       nsactl logs jabc --tail 20 --rank 1 (Last"));
  EXPECT_THAT(mail, HasSubstr("\n\nsignal 11\nsecond line\n"));
}

TEST(NoticeMessage, MailOfSeveralEventsIsAboutTheGravestAndHasAnIdOfItsOwn) {
  const std::string mail =
      Mail({Tell(17, "a", "", v1::SEVERITY_INFO), Tell(18, "b", "", v1::SEVERITY_ERROR),
            Tell(20, "c", "", v1::SEVERITY_WARNING)});
  EXPECT_THAT(mail, HasSubstr("Subject: [nsa] b is restarting, RANK_CRASHED (and 2 more)\n"));
  EXPECT_THAT(mail, HasSubstr("<nsa.17-20.1800000000123000000.ops@lab>"))
      << "a server that drops copies must not drop the third event";
  EXPECT_THAT(mail, AllOf(HasSubstr("\na is "), HasSubstr("\nb is "), HasSubstr("\nc is ")));
}

// Where a backup was restored, numbers of events come again.
TEST(NoticeMessage, MailOfAnotherEventWithTheSameNumberHasAnotherId) {
  Telling later = Tell(17, "demo", "fine");
  later.event.set_unix_nanos(later.event.unix_nanos() + 1);
  EXPECT_NE(HeaderOf(Mail({later}))[4], HeaderOf(Mail({Tell(17, "demo", "fine")}))[4]);
}

TEST(NoticeMessage, NoNameOrTextAddsALineToTheHeaderOfAMail) {
  const std::string name = "x\r\nBcc: victim@example.com\r\n\r\nbody";
  Telling telling = Tell(17, name, "fine");
  telling.event.set_reason("A\nBcc: victim@example.com");
  const std::vector<std::string> header = HeaderOf(Mail({telling}));
  EXPECT_THAT(header, SizeIs(10));
  for (const std::string& line : header) EXPECT_THAT(line, Not(StartsWith("Bcc"))) << line;
}

TEST(NoticeMessage, ASubjectThatIsNotAsciiIsEncodedInWholeCharacters) {
  EXPECT_EQ(HeaderText("plain"), "plain");
  EXPECT_EQ(HeaderText("Größe"), "=?UTF-8?B?R3LDtsOfZQ==?=");
  std::string umlauts = "a";
  for (int i = 0; i < 40; ++i) umlauts += "ü";
  const std::string encoded = HeaderText(umlauts);
  const std::vector<std::string> words = absl::StrSplit(encoded, "\n ");
  EXPECT_THAT(words, SizeIs(2));
  for (const std::string& word : words) EXPECT_LE(word.size(), 75u) << word;
}

TEST(NoticeMessage, QuotedPrintableKeepsLinesShortAndBytesWhole) {
  EXPECT_EQ(QuotedPrintable("a=b ü\n"), "a=3Db =C3=BC\n");
  EXPECT_EQ(QuotedPrintable("end \nnext\t"), "end=20\nnext=09");
  EXPECT_EQ(QuotedPrintable("\r\x01"), "=0D=01");
  const std::string encoded = QuotedPrintable(std::string(500, 'x') + "ü" + std::string(70, '='));
  std::string joined;
  for (const absl::string_view line : absl::StrSplit(encoded, '\n')) {
    EXPECT_LE(line.size(), 76u);
    joined +=
        std::string(line.substr(0, line.size() - (line.empty() || line.back() != '=' ? 0 : 1)));
  }
  EXPECT_EQ(joined.substr(0, 500), std::string(500, 'x'));
}

}  // namespace
}  // namespace nsa::server
