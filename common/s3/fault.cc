#include "common/s3/fault.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/clean_text.h"

namespace nsa {
namespace {

constexpr size_t kLongestCode = 60;

// Codes of the service, and what to do. The first five are answers to wrong credentials.
struct Known {
  std::string_view code;
  absl::StatusCode status;
  std::string_view advice;
};
constexpr Known kKnown[] = {
    {"InvalidAccessKeyId", absl::StatusCode::kPermissionDenied, "the key is not known there"},
    {"SignatureDoesNotMatch", absl::StatusCode::kPermissionDenied,
     "the secret does not belong to the key"},
    {"ExpiredToken", absl::StatusCode::kPermissionDenied, "the temporary credentials have ended"},
    {"InvalidToken", absl::StatusCode::kPermissionDenied,
     "AWS_SESSION_TOKEN does not belong to the key"},
    {"AccessDenied", absl::StatusCode::kPermissionDenied, "the key may not do this"},
    {"RequestTimeTooSkewed", absl::StatusCode::kFailedPrecondition,
     "the clock of this machine differs from the server's by more than it allows; set both by NTP"},
    {"NoSuchBucket", absl::StatusCode::kNotFound,
     "there is no such bucket; make it, or correct the URL or the endpoint"},
    {"NoSuchUpload", absl::StatusCode::kNotFound, "the upload is over or was given up"},
    {"NoSuchKey", absl::StatusCode::kNotFound, "there is no such object; correct the URL"},
    {"RequestTimeout", absl::StatusCode::kUnavailable, ""},
    {"InternalError", absl::StatusCode::kUnavailable, ""},
    {"SlowDown", absl::StatusCode::kUnavailable, ""},
};

std::string Whose(const S3Access& access) {
  if (access.signature) return absl::StrCat(" (from ", access.from, ")");
  return " (requests are not signed, because there are no credentials; set AWS_ACCESS_KEY_ID and "
         "AWS_SECRET_ACCESS_KEY where the agent is started, or let the Unix user of the job have "
         "~/.aws/credentials)";
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

std::string XmlText(std::string_view document, std::string_view name) {
  const std::string begin = absl::StrCat("<", View(name), ">");
  const size_t at = document.find(begin);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = document.substr(at + begin.size());
  const size_t end = rest.find(absl::StrCat("</", View(name), ">"));
  if (end == std::string_view::npos) return "";
  return absl::StrReplaceAll(View(rest.substr(0, end)), {{"&quot;", "\""},
                                                         {"&#34;", "\""},
                                                         {"&apos;", "'"},
                                                         {"&#39;", "'"},
                                                         {"&lt;", "<"},
                                                         {"&gt;", ">"},
                                                         {"&amp;", "&"}});
}

absl::Status S3Fault(std::string_view what, const HttpReply& reply, const S3Access& access) {
  const std::string code = CleanLine(CutText(XmlText(reply.body, "Code"), kLongestCode));
  std::string text = absl::StrCat(View(what), ": ");
  absl::StrAppend(&text, reply.status == 0 ? reply.fault : absl::StrCat("HTTP ", reply.status));
  if (!code.empty()) absl::StrAppend(&text, ", ", code);
  if (reply.refused_address || reply.untrusted) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, "; correct the endpoint, or name its authority in SSL_CERT_FILE"));
  }
  const auto known = std::ranges::find(kKnown, code, &Known::code);
  if (known != std::end(kKnown)) {
    if (known->advice.empty()) return {known->status, text};
    const bool keys = known->status == absl::StatusCode::kPermissionDenied;
    return {known->status,
            absl::StrCat(text, "; ", View(known->advice), keys ? Whose(access) : "")};
  }
  if (reply.status == 401 || reply.status == 403) {
    return absl::PermissionDeniedError(absl::StrCat(text, "; not allowed", Whose(access)));
  }
  if (reply.status == 404) {
    return absl::NotFoundError(absl::StrCat(text, "; there is no such object; correct the URL"));
  }
  if (reply.status / 100 == 3 || code == "AuthorizationHeaderMalformed") {
    std::string region = reply.bucket_region;
    if (region.empty()) region = XmlText(reply.body, "Region");
    return absl::FailedPreconditionError(absl::StrCat(
        text, "; the bucket is in another region than ", access.region, ": set AWS_REGION",
        region.empty() ? "" : absl::StrCat(" to ", CleanLine(CutText(region, kLongestCode)))));
  }
  const bool later = reply.status == 0 || reply.status == 408 || reply.status == 429 ||
                     reply.status >= 500 || (reply.status / 100 == 2 && !reply.fault.empty());
  if (later) {
    const bool more = reply.status != 0 && !reply.fault.empty();
    return absl::UnavailableError(more ? absl::StrCat(text, ", ", reply.fault) : text);
  }
  return absl::FailedPreconditionError(absl::StrCat(text, "; correct the URL or the endpoint"));
}

}  // namespace nsa
