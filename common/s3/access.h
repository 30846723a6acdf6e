// Where s3:// URLs lead, and who signs: from the environment and from the files of the AWS tools.
//
// Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN if they are
// temporary; else the section AWS_PROFILE (default: default) of the file
// AWS_SHARED_CREDENTIALS_FILE, or of ~/.aws/credentials. An agent sets that variable to nothing for
// ranks that run as its own user, so that they read no file. Without credentials requests are not
// signed, which public buckets allow.
//
// Region: AWS_REGION, AWS_DEFAULT_REGION, or `region` of the profile in AWS_CONFIG_FILE
// (~/.aws/config); else us-east-1. Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or
// `endpoint_url` there; else Amazon's of the region. With an endpoint of one's own, buckets are in
// the path; at Amazon's they are in the host's name, apart from those with a dot, which no
// certificate covers.
//
// No secret is in a message. Thread-safe, as long as nobody changes the environment.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http.h"
#include "common/job/data/url.h"

namespace nsa {

struct S3Access {
  std::optional<HttpSignature> signature;  // none: requests are not signed
  std::string from;                        // the variable or file that has the key, for messages
  std::string region = "us-east-1";
  std::string endpoint;  // without a slash at the end; empty: Amazon's
};

// InvalidArgument, naming the variable or the file, for half a key, a profile that is not there, a
// character that no key has, an endpoint that is no http or https URL of a host, or no region.
absl::StatusOr<S3Access> S3AccessFromEnvironment();

// The http or https URL of an object, or of a bucket if the key is empty.
std::string S3HttpUrl(const S3Access& access, const S3Path& path);

}  // namespace nsa
