#include "common/s3/access.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/base/environment.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

std::string FirstOf(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (std::string value = Environment(name); !value.empty()) return value;
  }
  return "";
}

// The file that `variable` names, also none; else that one in ~/.aws.
fs::path FileOf(const char* variable, const char* name) {
  if (std::getenv(variable) != nullptr) return Environment(variable);
  const std::string home = Environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".aws" / name;
}

using Section = std::map<std::string, std::string>;

// A section of an INI file; nothing if the file or the section is not there. What is indented
// belongs to a key with sections of its own, which we do not read.
std::optional<Section> SectionOf(const fs::path& file, const std::string& name) {
  const std::string text = file.empty() ? "" : ReadWholeFile(file).value_or("");
  std::optional<Section> found;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view bare = absl::StripAsciiWhitespace(line);
    if (bare.empty() || bare.front() == '#' || bare.front() == ';') continue;
    if (bare.front() == '[' && bare.back() == ']') {
      inside = absl::StripAsciiWhitespace(bare.substr(1, bare.size() - 2)) == name;
      if (inside) found.emplace();
      continue;
    }
    if (!inside || absl::ascii_isspace(line.front())) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(bare, absl::MaxSplits('=', 1));
    (*found)[std::string(absl::StripAsciiWhitespace(parts.first))] =
        std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return found;
}

std::string ValueOf(const std::optional<Section>& section, const std::string& key) {
  if (!section) return "";
  const auto found = section->find(key);
  return found == section->end() ? "" : found->second;
}

// A line feed in a key would add headers to the request.
bool IsPlainKey(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isgraph(c); });
}

absl::Status SetSignature(const std::string& profile, S3Access* access) {
  HttpSignature key = {.key_id = Environment("AWS_ACCESS_KEY_ID"),
                       .secret = Environment("AWS_SECRET_ACCESS_KEY"),
                       .session_token = Environment("AWS_SESSION_TOKEN")};
  access->from = "AWS_ACCESS_KEY_ID";
  if (key.key_id.empty() && key.secret.empty()) {
    const fs::path file = FileOf("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    const std::optional<Section> section = SectionOf(file, profile);
    if (!section && !Environment("AWS_PROFILE").empty() && !file.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("AWS_PROFILE: ", CleanLine(CutText(profile, 60)), " is not a section of ",
                       file.string(), "; correct it"));
    }
    key = {.key_id = ValueOf(section, "aws_access_key_id"),
           .secret = ValueOf(section, "aws_secret_access_key"),
           .session_token = ValueOf(section, "aws_session_token")};
    access->from = file.string();
  }
  if (key.key_id.empty() && key.secret.empty()) return absl::OkStatus();
  if (key.key_id.empty() || key.secret.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(access->from,
                     ": half a key (an id and a secret are needed, AWS_ACCESS_KEY_ID and "
                     "AWS_SECRET_ACCESS_KEY or both of the profile); give both"));
  }
  if (!IsPlainKey(key.key_id) || !IsPlainKey(key.secret) || !IsPlainKey(key.session_token)) {
    return absl::InvalidArgumentError(
        absl::StrCat(access->from,
                     ": the key has characters that no key has (its value is not shown); "
                     "set it again"));
  }
  access->signature = std::move(key);
  return absl::OkStatus();
}

absl::Status SetEndpoint(std::string text, S3Access* access) {
  while (text.ends_with("/")) text.pop_back();
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<Url> url = ParseUrl(text);
  if (!url.ok() || url->target != "/") {
    // A user name may stand before a password.
    const bool hidden = text.find('@') != std::string::npos;
    return absl::InvalidArgumentError(
        absl::StrCat("AWS_ENDPOINT_URL_S3: ", hidden ? "it" : CleanLine(CutText(text, 200)),
                     " is not the address of a host (https://HOST or http://HOST:PORT, also "
                     "AWS_ENDPOINT_URL and endpoint_url in ~/.aws/config); correct it"));
  }
  access->endpoint = url->origin();
  return absl::OkStatus();
}

absl::Status SetRegion(const std::string& text, S3Access* access) {
  if (text.empty()) return absl::OkStatus();
  const bool plain = text.size() <= 40 && std::ranges::all_of(text, [](unsigned char c) {
                       return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
                     });
  if (!plain) {
    return absl::InvalidArgumentError(absl::StrCat("AWS_REGION: ", CleanLine(CutText(text, 60)),
                                                   " is no region (eu-central-1, or auto); "
                                                   "correct it"));
  }
  access->region = text;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<S3Access> S3AccessFromEnvironment() {
  S3Access access;
  std::string profile = Environment("AWS_PROFILE");
  if (profile.empty()) profile = "default";
  const std::optional<Section> config =
      SectionOf(FileOf("AWS_CONFIG_FILE", "config"),
                profile == "default" ? profile : absl::StrCat("profile ", profile));
  NSA_RETURN_IF_ERROR(SetSignature(profile, &access));
  std::string region = FirstOf({"AWS_REGION", "AWS_DEFAULT_REGION"});
  NSA_RETURN_IF_ERROR(SetRegion(region.empty() ? ValueOf(config, "region") : region, &access));
  std::string endpoint = FirstOf({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  NSA_RETURN_IF_ERROR(
      SetEndpoint(endpoint.empty() ? ValueOf(config, "endpoint_url") : endpoint, &access));
  if (access.signature) access.signature->region = access.region;
  return access;
}

std::string S3HttpUrl(const S3Access& access, const S3Path& path) {
  const std::string key = absl::StrCat("/", EncodePath(path.key));
  if (!access.endpoint.empty()) return absl::StrCat(access.endpoint, "/", path.bucket, key);
  const std::string host = absl::StrCat("s3.", access.region, ".amazonaws.com");
  if (path.bucket.find('.') != std::string::npos) {
    return absl::StrCat("https://", host, "/", path.bucket, key);
  }
  return absl::StrCat("https://", path.bucket, ".", host, key);
}

}  // namespace nsa
