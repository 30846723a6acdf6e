// nsactl. Parsing and commands start in cli.h; this file connects them to the process.
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstring>
#include <iostream>

#include "client/cli.h"
#include "common/rpc/rpc.h"

namespace {

int TerminalColumns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // A limit of file sizes is an error of the write.
  nsa::SilenceGrpc();
  // Ctrl-C cancels a call that waits. While nothing waits, e.g. while a file is read, it exits.
  nsa::client::Interrupt interrupt(
      [] { _exit(static_cast<int>(nsa::client::ExitCode::kInterrupted)); });
  const nsa::client::SignalListener listener(&interrupt);
  std::setlocale(LC_CTYPE, "");
  std::ios::sync_with_stdio(false);
  const nsa::RealClock clock;
  nsa::client::Session session({.out = &std::cout,
                                .err = &std::cerr,
                                .terminal = isatty(STDOUT_FILENO) == 1,
                                .unicode = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
                                .columns = TerminalColumns,
                                .in = &std::cin,
                                .can_ask = isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1},
                               &clock, &interrupt);
  nsa::client::Cli cli(&session);
  return static_cast<int>(cli.Main({argv + 1, argv + argc}));
}
