# The CUDA part: src/device/cuda, src/ops/cuda and bench/cuda, for sm_90a (H100, H200), with nothing but the CUDA
# toolkit beneath them. BT_CUDA adds it to the whole build when a CUDA compiler is found; BT_CUDA_ONLY builds it alone,
# for a GPU machine that has no other packages.
set(CMAKE_CUDA_ARCHITECTURES 90a)
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(BT_CUDA_ONLY)
    message(FATAL_ERROR "BT_CUDA_ONLY: no CUDA compiler found")
  endif()
  message(STATUS "no CUDA compiler found: the CUDA module is not built")
  return()
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
set(BT_CUDA_BUILT TRUE)

add_library(bt_cuda_flags INTERFACE)
set(cuda -O3 -lineinfo --expt-relaxed-constexpr --Werror=all-warnings
  -Xcompiler=-Wall,-Wextra,-Werror,-fno-omit-frame-pointer)
set(host -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror)
target_compile_options(bt_cuda_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:${cuda}>" "$<$<COMPILE_LANGUAGE:CXX>:${host}>")

# bt_cuda_library(TARGET SRCS a.cu b.cc ... [LINK targets])
function(bt_cuda_library target)
  cmake_parse_arguments(L "" "" "SRCS;LINK" ${ARGN})
  add_library(${target} STATIC ${L_SRCS})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${L_LINK} CUDA::cudart_static PRIVATE bt_cuda_flags)
  set_target_properties(${target} PROPERTIES CUDA_RESOLVE_DEVICE_SYMBOLS OFF)
endfunction()

function(bt_cuda_executable exe file)
  add_executable(${exe} ${file})
  target_include_directories(${exe} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${exe} PRIVATE ${ARGN} bt_cuda_flags)
  # The host linker does it: nvcc knows neither -fuse-ld nor sanitizers, and there is no device code to link.
  set_target_properties(${exe} PROPERTIES LINKER_LANGUAGE CXX CUDA_RESOLVE_DEVICE_SYMBOLS OFF)
endfunction()

# bt_cuda_tests(ROOM FILES a_test.cc ... LINK targets): each file (support/gpu_test.h), with a_test_*.cc beside it, becomes one
# executable "ROOM_cuda_FILE" and one ctest entry "ROOM/cuda/FILE" with the label gpu, skipped where there is no GPU.
function(bt_cuda_tests room)
  cmake_parse_arguments(T "" "" "FILES;LINK" ${ARGN})
  if(NOT BT_TESTS)
    return()
  endif()
  foreach(file ${T_FILES})
    get_filename_component(stem ${file} NAME_WE)
    bt_cuda_executable(${room}_cuda_${stem} ${file} ${T_LINK})
    get_filename_component(folder ${file} ABSOLUTE)
    get_filename_component(folder ${folder} DIRECTORY)
    file(GLOB more_cases CONFIGURE_DEPENDS ${folder}/${stem}_*.cc ${folder}/${stem}_*.cu)
    target_sources(${room}_cuda_${stem} PRIVATE ${more_cases})
    add_test(NAME ${room}/cuda/${stem} COMMAND ${room}_cuda_${stem} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${room}/cuda/${stem} PROPERTIES LABELS gpu SKIP_RETURN_CODE 77 TIMEOUT 600 RUN_SERIAL ON)
  endforeach()
endfunction()
