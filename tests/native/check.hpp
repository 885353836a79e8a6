// SPDX-License-Identifier: Apache-2.0
// The smallest test frame: CHECK and CHECK_EQ throw a Failure that names file and line, run_tests counts them.
// Check on the main thread only: an exception that leaves another thread ends the program.
#pragma once

#include <cstdio>
#include <exception>
#include <initializer_list>
#include <sstream>
#include <string>

namespace hccl_py::testing {

struct Failure {
  std::string text;
};

struct Test {
  const char* name;
  void (*run)();
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure{std::string(file) + ":" + std::to_string(line) + ": " + what};
}

template <class A, class B>
void check_eq(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream what;
  what << text << ": " << a << " != " << b;
  fail(file, line, what.str());
}

// The number of failed tests.
inline int run_tests(std::initializer_list<Test> tests) {
  int failed = 0;
  for (const Test& test : tests) {
    std::string problem;
    try {
      test.run();
    } catch (const Failure& failure) {
      problem = failure.text;
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const bool ok = problem.empty();
    std::printf("%s %s%s%s\n", ok ? "ok    " : "FAILED", test.name, ok ? "" : ": ", problem.c_str());
    failed += ok ? 0 : 1;
  }
  return failed;
}

}  // namespace hccl_py::testing

#define CHECK(condition) \
  ((condition) ? void() : ::hccl_py::testing::fail(__FILE__, __LINE__, "CHECK(" #condition ") is false"))
#define CHECK_EQ(a, b) ::hccl_py::testing::check_eq(__FILE__, __LINE__, "CHECK_EQ(" #a ", " #b ")", (a), (b))
