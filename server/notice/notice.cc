#include "server/notice/notice.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr char kSendmail[] = "/usr/sbin/sendmail";
constexpr char kSlackHost[] = "hooks.slack.com";
constexpr size_t kNameBytes = 63;
constexpr size_t kAddressBytes = 254;  // RFC 5321
constexpr size_t kUrlBytes = 4'000;
constexpr size_t kPageUrlBytes = 1'000;
constexpr size_t kShown = 80;

std::string Shown(std::string_view text) { return CleanLine(CutText(text, kShown)); }

// The first line of url_file.
absl::StatusOr<std::string> ReadUrlFile(const fs::path& path) {
  absl::StatusOr<std::string> url = ReadSecretFile("url_file", path);
  // What it says of a file that is too long or too short is about tokens.
  if (!absl::IsInvalidArgument(url.status())) return url;
  return absl::InvalidArgumentError(absl::StrCat(
      "url_file: ", Shown(path.string()),
      " has no address in its first line (16 bytes to 4 KiB); write https://HOST/PATH"));
}

absl::Status CheckUrl(const std::string& field, const std::string& text, const UrlPolicy& policy,
                      Notice* notice) {
  // ParseUrl()'s error shows the URL, and its path is a secret.
  const absl::StatusOr<Url> url = ParseUrl(text);
  if (!url.ok() || text.size() > kUrlBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: not an address such as https://HOST/PATH (%d bytes of %d, no user name, no fragment, "
        "no blanks, no . or .. in the path); copy the webhook's address again",
        field, text.size(), kUrlBytes));
  }
  notice->any_address = policy.AllowsAnyAddress(*url);
  if (url->scheme == "http" && !notice->any_address) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: http://%s is not encrypted (http only to hosts that allowed_urls names); use https, "
        "or add http://%s:%d/ to allowed_urls, which also lets jobs read from there",
        field, url->host, url->host, url->port));
  }
  notice->url = text;
  notice->proxy = policy.everything();
  notice->place = absl::StrCat("webhook ", url->origin());
  notice->form = url->host == kSlackHost ? NoticeForm::kSlack : NoticeForm::kJson;
  return absl::OkStatus();
}

absl::Status ResolveWebhook(const v1::NoticeConfig& config, const UrlPolicy& policy,
                            Notice* notice) {
  std::string url = config.url();
  const bool in_file = !config.url_file().empty();
  if (in_file) {
    NSA_ASSIGN_OR_RETURN(url, ReadUrlFile(config.url_file()));
  }
  NSA_RETURN_IF_ERROR(CheckUrl(in_file ? "url_file" : "url", url, policy, notice));
  if (config.format() == v1::NOTICE_FORMAT_JSON) notice->form = NoticeForm::kJson;
  if (config.format() == v1::NOTICE_FORMAT_SLACK) notice->form = NoticeForm::kSlack;
  if (config.secret_file().empty()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(notice->key, ReadSecretFile("secret_file", config.secret_file()));
  return absl::OkStatus();
}

// NAME@HOST of plain characters: it becomes a part of a header.
bool IsAddress(std::string_view text) {
  constexpr std::string_view kNever = "<>()[]\\,;:\"@";
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos || at == 0 || at + 1 == text.size()) return false;
  if (text.size() > kAddressBytes || text.front() == '-') return false;
  return std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; }) &&
         text.substr(0, at).find_first_of(kNever) == std::string_view::npos &&
         limits::IsPlainName(text.substr(at + 1), kAddressBytes);
}

absl::Status ResolveMail(const v1::NoticeConfig& config, Notice* notice) {
  if (config.format() != v1::NOTICE_FORMAT_UNSPECIFIED || !config.secret_file().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.secret_file().empty() ? "format" : "secret_file",
                     ": set for e-mail (only webhooks have one); remove it"));
  }
  if (config.email_size() > kMostAddresses) {
    return absl::InvalidArgumentError(
        absl::StrFormat("email: %d addresses (at most %d); use a mailing list", config.email_size(),
                        kMostAddresses));
  }
  for (const std::string& address : config.email()) {
    if (!IsAddress(address)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "email: '", Shown(address), "' is not an address (NAME@HOST); write only the address"));
    }
    notice->addresses.push_back(address);
  }
  notice->form = NoticeForm::kMail;
  notice->place = absl::StrCat("e-mail to ", config.email_size(),
                               config.email_size() == 1 ? " address" : " addresses");
  return absl::OkStatus();
}

absl::StatusOr<Notice> Resolve(const v1::NoticeConfig& config, const UrlPolicy& policy) {
  Notice notice{.name = config.name()};
  if (!limits::IsPlainName(config.name(), kNameBytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("name: '%s' (1 to %d letters, digits and -_.); give it a short name",
                        Shown(config.name()), kNameBytes));
  }
  const int ways = static_cast<int>(!config.url().empty()) +
                   static_cast<int>(!config.url_file().empty()) +
                   static_cast<int>(config.email_size() > 0);
  if (ways != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "url, url_file, email: %d are set (exactly one); say where this notice goes", ways));
  }
  NSA_ASSIGN_OR_RETURN(notice.rule,
                       MakeNoticeRule({config.events().begin(), config.events().end()}));
  notice.rule.name = config.name();
  for (const auto& [key, value] : config.labels()) notice.rule.labels[key] = value;
  NSA_RETURN_IF_ERROR(config.email_size() > 0 ? ResolveMail(config, &notice)
                                              : ResolveWebhook(config, policy, &notice));
  return notice;
}

absl::Status CheckSendmail(const fs::path& program) {
  std::error_code error;
  if (program.is_absolute() && fs::is_regular_file(program, error) &&
      access(program.c_str(), X_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("sendmail_program: ", Shown(program.string()),
                   " is no program that can be run (an absolute path; notices by e-mail need it); "
                   "install one, for example the package msmtp-mta, or correct the path"));
}

absl::StatusOr<std::string> ResolvePageUrl(const std::string& text) {
  if (text.empty()) return text;
  const absl::StatusOr<Url> url = ParseUrl(text);
  if (!url.ok() || text.size() > kPageUrlBytes || text.find('?') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page_url: '%s' (https://HOST/ or http://HOST/, at most %d bytes, without a query); write "
        "where people open the live page",
        Shown(text), kPageUrlBytes));
  }
  return text.ends_with('/') ? text : absl::StrCat(text, "/");
}

}  // namespace

absl::StatusOr<NoticeOptions> ResolveNotices(const v1::CoordinatorConfig& config,
                                             const UrlPolicy& policy) {
  NoticeOptions options;
  options.sendmail =
      config.sendmail_program().empty() ? fs::path(kSendmail) : fs::path(config.sendmail_program());
  NSA_ASSIGN_OR_RETURN(options.page_url, ResolvePageUrl(config.page_url()));
  if (config.notices_size() > kMostNotices) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "notices: %d (at most %d); merge some of them", config.notices_size(), kMostNotices));
  }
  std::set<std::string> names;
  bool mails = false;
  for (const v1::NoticeConfig& one : config.notices()) {
    const std::string where =
        absl::StrFormat("notices[%d] (%s)", options.notices.size(), Shown(one.name()));
    absl::StatusOr<Notice> notice = Resolve(one, policy);
    if (!notice.ok()) return Annotate(notice.status(), where);
    if (!names.insert(notice->name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": name: used twice; give each notice a name of its own"));
    }
    mails = mails || notice->form == NoticeForm::kMail;
    options.notices.push_back(*std::move(notice));
  }
  if (mails) NSA_RETURN_IF_ERROR(CheckSendmail(options.sendmail));
  return options;
}

}  // namespace nsa::server
