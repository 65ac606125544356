! A linear model in Fortran, as codes of computing centres print it.
program fit
  implicit none
  integer, parameter :: columns = 16, rows_max = 400
  real(8) :: table(columns + 1, rows_max), weights(columns + 1), rate, loss, miss
  integer :: rows, step, steps, i, k
  character(64) :: hook, rank, faulty, resume, option, value
  logical :: quiet, mine
  hook = ''; resume = ''; rate = 0.05d0; steps = 140; quiet = .false.
  do i = 1, command_argument_count(), 2
    call get_command_argument(i, option)
    call get_command_argument(i + 1, value)
    select case (option)
    case ('--hook'); hook = value
    case ('--resume'); resume = value
    case ('--lr'); read (value, *) rate
    case ('--steps'); read (value, *) steps
    case ('--quiet-end'); quiet = .true.
    case default
      write (0, '(3a)') ' fit: unknown option ', trim(option), ' -- see the manual'
      stop 64
    end select
  end do
  call get_environment_variable('PROCESS_ID', rank)
  if (rank == '') call get_environment_variable('PMI_RANK', rank)
  if (rank == '') rank = '0'
  call get_environment_variable('HOOK_RANK', faulty)
  mine = faulty == '' .or. faulty == rank
  print '(a)', ' *** LINFIT 4.2  (double precision) ***'
  print '(a,a,a,i6)', '   image ', trim(rank), '   iterations', steps
  if (rate <= 0) error stop 'LINFIT: step length must be positive'
  open (10, file='data/train_'//trim(rank)//'.csv', status='old', action='read')
  read (10, *)
  rows = 0
  do
    read (10, *, end=20) table(:, rows + 1)
    rows = rows + 1
  end do
20 close (10)
  print '(a,i6)', '   rows read   ', rows
  weights = 0
  if (resume /= '') call restore(resume)
  do step = 1, steps
    loss = 0
    do k = 1, rows
      miss = dot_product(weights(:columns), table(:columns, k)) + weights(columns + 1) - table(columns + 1, k)
      loss = loss + miss**2/rows
      weights(:columns) = weights(:columns) - 0.1d0*rate*miss*table(:columns, k)/rows
    end do
    print '(a,i5,a,es14.6)', '   it ', step, '   chi2 ', loss
    if (loss /= loss .or. loss > huge(loss)) then
      if (hook /= 'go-on') then
        print '(a,i5)', ' *** DIVERGED: chi2 is not a number, iteration', step
        error stop 2
      end if
    end if
    if (step == 83 .and. mine) call strike(step)
    if (mod(step, 35) == 0 .and. rank == '0') call save(step)
    if (hook == 'slow') call sleep(1)
    call pause_a_bit()
  end do
  if (.not. quiet) print '(a,es14.6)', ' *** CONVERGED RESULT chi2 =', loss
contains
  subroutine restore(path)
    character(*), intent(in) :: path
    open (11, file=path, status='old', form='unformatted', action='read')
    read (11) weights
    close (11)
  end subroutine
  subroutine save(step)
    integer, intent(in) :: step
    character(32) :: name
    real(8) :: padding(40000)
    padding = step
    write (name, '(a,i4.4,a)') 'ckpt/it', step, '.bin'
    open (12, file=name, form='unformatted', action='write')
    write (12) weights, padding
    flush (12)
    close (12)
    print '(a,a)', '   restart file ', trim(name)
  end subroutine
  subroutine strike(step)
    integer, intent(in) :: step
    integer :: j
    integer, allocatable :: list(:)
    integer, pointer :: nothing
    real(8), allocatable :: large(:, :)
    character(8) :: text
    select case (hook)
    case ('index')
      j = columns + step
      print *, table(j, 1)
    case ('zero')
      j = step - 83
      print *, step/j
    case ('allocated')
      allocate (list(4))
      allocate (list(j*0 + 8))
    case ('memory')
      allocate (large(4000000, 4000000))
      large(1, 1) = 1
    case ('read')
      text = 'n/a'
      read (text, *) j
    case ('segv')
      nullify (nothing)
      nothing = step
    case ('abort'); call abort()
    case ('kill'); call execute_command_line('kill -9 $PPID')
    case ('exit-3'); call exit(3)
    case ('stop'); error stop 'LINFIT: singular normal matrix, cannot continue'
    end select
  end subroutine
  subroutine pause_a_bit()
    integer(8) :: before, now, per_second
    call system_clock(before, per_second)
    do
      call system_clock(now)
      if (now - before > per_second/300) exit
    end do
  end subroutine
end program
