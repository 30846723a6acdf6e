// The environment variables that reading training data from web servers and from the Hugging Face
// Hub needs (worker/train/data/remote/options.h), and object stores (common/s3/access.h). A program
// that starts a worker, or an agent that will, passes them on. Where the user's own token of the
// Hub is kept is not among them: only nsactl passes that on, to workers that read for its own user.
#pragma once

#include <string>
#include <vector>

namespace nsa {

inline constexpr const char* kDataEnvironment[] = {
    "AWS_ACCESS_KEY_ID",
    "AWS_CONFIG_FILE",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "NSA_DATA_CACHE_BYTES",
    "NSA_DATA_CACHE_DIR",
    "SSL_CERT_FILE",
    "XDG_CACHE_HOME",
    // Proxies, which are used or else named in errors (common/http/http.h).
    "ALL_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
};

// `names` and these.
inline std::vector<std::string> WithDataEnvironment(std::vector<std::string> names) {
  names.insert(names.end(), std::begin(kDataEnvironment), std::end(kDataEnvironment));
  return names;
}

}  // namespace nsa
