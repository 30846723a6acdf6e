#include "server/notice/outcome.h"

#include <sysexits.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/http/retry_after.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Minutes(5);
constexpr absl::Duration kGiveUpAge = absl::Hours(24);
constexpr absl::Duration kGiveUpFailing = absl::Hours(1);
constexpr size_t kShownAnswerBytes = 80;
constexpr size_t kSaidBytes = 300;
constexpr size_t kShortestSecret = 4;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// What follows the host.
std::string_view TargetOf(std::string_view url) {
  const size_t host = url.find("://") + 3;
  return url.substr(std::min(url.find_first_of("/?", host), url.size()));
}

// Its words.
std::vector<std::string> SecretsOf(std::string_view url) {
  std::vector<std::string> secrets;
  for (const absl::string_view word :
       absl::StrSplit(View(TargetOf(url)), absl::ByAnyChar("/?&=#"))) {
    if (word.size() >= kShortestSecret) secrets.push_back(absl::AsciiStrToLower(word));
  }
  return secrets;
}

// A short plain answer such as Slack's "no_service", which says why; otherwise empty. Pages of HTML
// often repeat the path that was asked for, in whatever spelling.
std::string PlainAnswer(const std::string& body, std::string_view url) {
  const std::string answer(absl::StripAsciiWhitespace(body));
  const bool plain = std::ranges::all_of(answer, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == ' ' || c == '.' || c == ',';
  });
  const std::string lower = absl::AsciiStrToLower(answer);
  const bool repeats = std::ranges::any_of(SecretsOf(url), [&](const std::string& secret) {
    return lower.find(secret) != std::string::npos;
  });
  return plain && !repeats && answer.size() <= kShownAnswerBytes ? answer : "";
}

// An error of libcurl names the host at most; should one ever repeat the URL, it is cut.
std::string Fault(const nsa::HttpReply& reply, std::string_view url) {
  std::string fault = absl::StrReplaceAll(reply.fault, {{View(url), "the address"}});
  const std::string_view target = TargetOf(url);
  if (target.size() > 1) fault = absl::StrReplaceAll(fault, {{View(target), "/…"}});
  return CleanLine(CutText(fault, kSaidBytes));
}

std::string Said(const nsa::HttpReply& reply, std::string_view url) {
  if (reply.refused_address) {
    return "its address is not public (loopback, private or link-local); name its host in "
           "allowed_urls if that is right";
  }
  if (reply.status == 0) return Fault(reply, url);
  const std::string answer = PlainAnswer(reply.body, url);
  const bool redirects = reply.status >= 300 && reply.status < 400;
  return absl::StrCat(
      "HTTP ", reply.status,
      redirects ? " (redirects are not followed; use the address that it leads to)" : "",
      answer.empty() ? "" : ": ", answer);
}

}  // namespace

Outcome JudgeReply(const nsa::HttpReply& reply, std::string_view url, absl::Time now) {
  Outcome outcome{.said = Said(reply, url)};
  const int status = reply.status;
  if (status >= 200 && status < 300) return outcome;
  const bool later = status < 200 || status == 408 || status == 425 || status == 429 ||
                     (status >= 500 && status < 600);
  outcome.kind = later ? Outcome::kAgain : Outcome::kRefused;
  if (status == 429 || status == 503) outcome.wait = ParseRetryAfter(reply.retry_after, now);
  if (outcome.wait.has_value()) outcome.wait = std::min(*outcome.wait, kLongestAsked);
  return outcome;
}

Outcome JudgeExit(int code, std::string_view said) {
  if (code == 0) return {.said = "exit code 0"};
  const std::string line(absl::StripAsciiWhitespace(View(said)));
  const bool refused = code == EX_DATAERR || code == EX_NOUSER || code == EX_NOHOST;
  return {.kind = refused ? Outcome::kRefused : Outcome::kAgain,
          .said = absl::StrCat("exit code ", code, line.empty() ? "" : ": ",
                               CleanLine(CutText(line, kSaidBytes)))};
}

absl::Duration PauseAfter(int failures, double random, const Outcome& outcome) {
  const double doubled = std::ldexp(1.0, std::clamp(failures - 1, 0, 20));
  const absl::Duration pause = std::min(doubled * kFirstPause, kLongestPause);
  const absl::Duration spread = pause * (0.75 + random / 2);
  return std::max(spread, outcome.wait.value_or(absl::ZeroDuration()));
}

bool IsGivenUp(absl::Duration age, absl::Duration failing_for) {
  return age > kGiveUpAge && failing_for > kGiveUpFailing;
}

}  // namespace nsa::server
