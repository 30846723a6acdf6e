// Certificates for tests of TLS.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace nsa {

inline bool HaveOpenssl() { return std::system("command -v openssl >/dev/null 2>&1") == 0; }

// Makes NAME.crt and NAME.key in `folder`, valid for two days: of the authorities ca and other, and
// signed by ca server and client (127.0.0.1) and elsewhere (another host's name), by other stranger
// (127.0.0.1). False when openssl failed.
inline bool MakeCertificates(const std::filesystem::path& folder) {
  const std::string make =
      "cd " + folder.string() +
      " && (for a in ca other; do openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$a "
      "-keyout $a.key -out $a.crt; done && for n in server:ca client:ca elsewhere:ca "
      "stranger:other; do c=${n%:*} a=${n#*:} s=IP:127.0.0.1; [ $c = elsewhere ] && s=DNS:$c; "
      "openssl req -newkey rsa:2048 -nodes -subj /CN=$c -keyout $c.key -out $c.csr && "
      "echo subjectAltName=$s >$c.ext && openssl x509 -req -days 2 -in $c.csr -CA $a.crt -CAkey "
      "$a.key -CAcreateserial -extfile $c.ext -out $c.crt || exit 1; done) >/dev/null 2>&1";
  return std::system(make.c_str()) == 0;
}

}  // namespace nsa
